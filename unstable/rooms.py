"""What a run consists of: the rooms, and what the loop asks of an actor and a learner."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from unstable.buffers.buffer import Buffer
from unstable.buffers.rewards import Rewards
from unstable.config import RunConfig
from unstable.folder import RunFolder
from unstable.registry import Registry
from unstable.routing import Router
from unstable.schedule import Schedule
from unstable.tracking.tracker import Tracker
from unstable.types import Adapter, Batch, GameFailure, GameResult, GameSpec, Update

STATS_EVERY_S = 2.0


class Actor(Protocol):
    """A process with an engine that plays."""

    def play(
        self, specs: Sequence[GameSpec], enough: int | None = None
    ) -> AsyncIterator[GameResult | GameFailure]: ...

    async def publish(self, adapter: Adapter) -> None: ...

    async def retire(self, name: str) -> None: ...

    async def stats(self) -> dict[str, float]: ...

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...


class Learner(Protocol):
    """The owner of weights and optimizer."""

    async def update(self, batch: Batch) -> Update: ...

    async def save(self, version: int, run_state: dict[str, Any]) -> Adapter: ...


@dataclass
class Rooms:
    """All that a run consists of; `launch.py` puts it together."""

    config: RunConfig
    folder: RunFolder
    actors: Sequence[Actor]
    learner: Learner
    buffer: Buffer
    rewards: Rewards
    registry: Registry
    schedule: Schedule
    router: Router
    tracker: Tracker
    failures: int = 0
    asked: dict[int, float] = field(default_factory=dict)  # when an actor last told its numbers
    published: set[int] = field(default_factory=set)
    evaluated: int = -1  # the last version that was
    first_scores: dict[int, float] = field(default_factory=dict)  # of version 0, by game
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)  # what the buffer holds

    @property
    def is_done(self) -> bool:
        """All updates are made."""
        return self.registry.current >= self.config.loop.steps

    @contextlib.asynccontextmanager
    async def free_gpu(self) -> AsyncIterator[None]:
        """For the learner's turn on a GPU that it shares with sleeping actors, if it does."""
        sleeping = self.config.actors.share_gpu == "sleep"
        if sleeping:
            await asyncio.gather(*(actor.sleep() for actor in self.actors))
        try:
            yield
        finally:
            if sleeping:
                await asyncio.gather(*(actor.wake() for actor in self.actors))

    def stats_due(self, index: int) -> bool:
        """Whether it is time to ask an actor for its numbers; if so, it counts as asked."""
        due = time.monotonic() - self.asked.get(index, -math.inf) > STATS_EVERY_S
        if due:
            self.asked[index] = time.monotonic()
        return due

    def count(self, failure: GameFailure) -> None:
        """The fault border is a game: its failure is counted, and too many end the run."""
        self.tracker.add_failure(failure)
        if failure.spec.purpose == "train":
            self.buffer.lose(failure.spec)
        self.failures += 1
        allowed = self.config.loop.max_failures
        if self.failures > allowed:
            raise RuntimeError(
                f"{self.failures} games failed, more than loop.max_failures = {allowed}; "
                f"the last one: {failure.error}"
            )
