"""What the embedded engine was asked for, and what a step needs of all that runs."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from unstable.engines.base import SamplingRequest, Told
from unstable.engines.embedded.lora import Version
from unstable.engines.embedded.slots import Ints
from unstable.types import Completion, TopLogprobs

_SEED_BITS = 64


@dataclass(eq=False, slots=True, kw_only=True)
class EngineRequest:
    """A request that waits or runs."""

    asked: SamplingRequest
    prompt_ids: Ints
    answer: asyncio.Future[Completion | list[float]]
    next_ids: Sequence[int] | None = None  # whose logprobs are the answer, which ends with them
    slot: int = -1  # until it runs
    top_logprobs: TopLogprobs = field(default_factory=list)  # at each token so far, if wanted


class Running:
    """All requests that run, by slot, and what a step needs of them all as arrays."""

    def __init__(self, num_slots: int, max_length: int) -> None:
        self.requests: dict[int, EngineRequest] = {}
        self.told: dict[int, Told] = {}  # of those that are to be told of their tokens
        self.weights = np.zeros(num_slots, dtype=np.int64)  # numbers, as `Version` has them
        self.loras = np.zeros(num_slots, dtype=np.int64)
        self.temperatures = np.zeros(num_slots, dtype=np.float32)
        self.seeds = np.zeros(num_slots, dtype=np.uint64)
        self.begins = np.zeros(num_slots, dtype=np.int64)  # of answers: the prompts' lengths
        self.ends = np.zeros(num_slots, dtype=np.int64)  # the last place of an answer
        self.logprobs = np.zeros((num_slots, max_length), dtype=np.float32)  # by place

    def add(self, request: EngineRequest, version: Version) -> None:
        slot, asked = request.slot, request.asked
        self.requests[slot] = request
        if asked.told is not None:
            self.told[slot] = asked.told
        self.weights[slot], self.loras[slot] = version
        self.temperatures[slot] = asked.temperature
        self.seeds[slot] = asked.seed % 2**_SEED_BITS
        self.begins[slot] = len(request.prompt_ids)
        self.ends[slot] = len(request.prompt_ids) + asked.max_tokens

    def remove(self, slot: int) -> None:
        del self.requests[slot]
        self.told.pop(slot, None)
