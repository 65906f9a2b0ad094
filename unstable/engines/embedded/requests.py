"""The embedded engine's requests, and arrays over all running requests for a step."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from unstable.engines.base import SamplingRequest
from unstable.engines.embedded.lora import Version
from unstable.engines.embedded.slots import Ints
from unstable.types import Completion, TopLogprobs

_SEED_BITS = 64


@dataclass(eq=False, slots=True, kw_only=True)
class EngineRequest:
    """A request that is waiting or running."""

    asked: SamplingRequest
    prompt_ids: Ints
    answer: asyncio.Future[Completion | list[float]]
    next_ids: Sequence[int] | None = None  # candidates to score instead of sampling
    slot: int = -1  # -1: not running yet
    top_logprobs: TopLogprobs = field(default_factory=list)  # for each token so far, if recorded


class Running:
    """All running requests by slot, and their parameters as arrays for a step."""

    def __init__(self, num_slots: int, max_length: int) -> None:
        self.requests: dict[int, EngineRequest] = {}
        self.weights = np.zeros(num_slots, dtype=np.int64)  # `Version.weights` by slot
        self.loras = np.zeros(num_slots, dtype=np.int64)
        self.temperatures = np.zeros(num_slots, dtype=np.float32)
        self.seeds = np.zeros(num_slots, dtype=np.uint64)
        self.begins = np.zeros(num_slots, dtype=np.int64)  # prompt lengths
        self.ends = np.zeros(num_slots, dtype=np.int64)  # maximum lengths of prompt and completion
        self.logprobs = np.zeros((num_slots, max_length), dtype=np.float32)  # by slot and position

    def add(self, request: EngineRequest, version: Version) -> None:
        slot, asked = request.slot, request.asked
        self.requests[slot] = request
        self.weights[slot], self.loras[slot] = version
        self.temperatures[slot] = asked.temperature
        self.seeds[slot] = asked.seed % 2**_SEED_BITS
        self.begins[slot] = len(request.prompt_ids)
        self.ends[slot] = len(request.prompt_ids) + asked.max_tokens
