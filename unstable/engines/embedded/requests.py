"""What the embedded engine was asked for, and what a step needs of all that runs."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from unstable.engines.base import Told
from unstable.engines.embedded.slots import Ints
from unstable.types import Completion, TopLogprobs

_SEED_BITS = 64


@dataclass(eq=False, slots=True, kw_only=True)
class Request:
    prompt_ids: Ints
    adapter: str | None
    temperature: float
    max_tokens: int
    allowed_token_ids: Sequence[int] | None
    seed: int
    answer: asyncio.Future[Completion | list[float]]
    told: Told | None = None  # with each token, as it is sampled
    next_ids: Sequence[int] | None = None  # whose logprobs are the answer, which ends with them
    slot: int = -1  # until it runs
    top_logprobs: TopLogprobs = field(default_factory=list)  # at each token so far, if wanted


class Running:
    """What runs, by slot: requests, and what a step needs of them all as arrays."""

    def __init__(self, num_slots: int, max_length: int) -> None:
        self.requests: dict[int, Request] = {}
        self.told: dict[int, Told] = {}  # of those that are to be told of their tokens
        self.adapters = np.zeros(num_slots, dtype=np.int64)  # numbers; 0: the base model
        self.temperatures = np.zeros(num_slots, dtype=np.float32)
        self.seeds = np.zeros(num_slots, dtype=np.uint64)
        self.begins = np.zeros(num_slots, dtype=np.int64)  # of answers: the prompts' lengths
        self.ends = np.zeros(num_slots, dtype=np.int64)  # the last place of an answer
        self.logprobs = np.zeros((num_slots, max_length), dtype=np.float32)  # by place

    def add(self, request: Request, adapter: int) -> None:
        slot = request.slot
        self.requests[slot] = request
        if request.told is not None:
            self.told[slot] = request.told
        self.adapters[slot] = adapter
        self.temperatures[slot] = request.temperature
        self.seeds[slot] = request.seed % 2**_SEED_BITS
        self.begins[slot] = len(request.prompt_ids)
        self.ends[slot] = len(request.prompt_ids) + request.max_tokens

    def remove(self, slot: int) -> None:
        del self.requests[slot]
        self.told.pop(slot, None)
