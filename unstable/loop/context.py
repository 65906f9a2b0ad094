"""What a run consists of, and what all its actors do together."""

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypeVar

from unstable.buffers.buffer import Buffer
from unstable.buffers.gate import Gate
from unstable.config import RunConfig
from unstable.league.guard import Guard
from unstable.league.ratings import Registry
from unstable.league.routing import Router
from unstable.league.schedule import Schedule
from unstable.loop.interrupt import Interrupt
from unstable.loop.protocols import Actor, Learner
from unstable.records.folder import RunFolder
from unstable.rewards.terms import Rewards
from unstable.tracking.tracker import Tracker
from unstable.types import (
    Exploitability,
    GameFailure,
    GameResult,
    GameSpec,
    Trajectory,
)

STATS_EVERY_S = 2.0
RECENT_GAMES = 100
"""Games that failures are a share of."""
T = TypeVar("T")


@contextlib.asynccontextmanager
async def asleep(actors: Sequence[Actor], config: RunConfig) -> AsyncIterator[None]:
    """For the learner's turn on a GPU that it shares with sleeping actors, if it does."""
    sleeping = config.actors.share_gpu == "sleep"
    if sleeping:
        await asyncio.gather(*(actor.sleep() for actor in actors))
    try:
        yield
    finally:
        if sleeping:
            await asyncio.gather(*(actor.wake() for actor in actors))


async def exploit(actors: Sequence[Actor], game: str, version: int) -> Exploitability:
    """How exploitable a version is in a game that is solved exactly; all actors score a part."""
    began, count = time.time(), len(actors)
    parts = await asyncio.gather(
        *(actor.decide(game, version, part, count) for part, actor in enumerate(actors))
    )
    shares = {number: chances for part in parts for number, chances in part.items()}
    return await actors[0].assess(game, version, shares, began)


async def spread(
    specs: Sequence[GameSpec],
    actors: Sequence[Actor],
    play: Callable[[int, Sequence[GameSpec]], Awaitable[list[T]]],
) -> list[T]:
    """What `play` returns of an even share of the games for each actor, by its index."""
    count = len(actors)
    played = await asyncio.gather(*(play(index, specs[index::count]) for index in range(count)))
    return list(chain(*played))


@dataclass
class Context:
    """All that a run consists of; `commands/train.py` puts it together."""

    config: RunConfig
    folder: RunFolder
    actors: Sequence[Actor]
    learner: Learner
    buffer: Buffer
    rewards: Rewards
    registry: Registry
    schedule: Schedule
    router: Router
    guard: Guard
    tracker: Tracker
    exact_games: Sequence[str] = ()  # games whose exploitability is measured
    failures: int = 0
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT_GAMES))  # that failed
    asked: dict[int, float] = field(
        default_factory=dict
    )  # when an actor's numbers were last asked for
    published: set[int] = field(default_factory=set)
    in_flight: dict[int, GameSpec] = field(default_factory=dict)  # in asynchronous play, by id
    settled: bool = False  # all that follows the current version's publication is done
    interrupt: Interrupt = field(default_factory=Interrupt)
    evaluated: int = -1  # the last version that was
    measured: int = -1  # that the exploitability was
    first_scores: dict[int, float] = field(default_factory=dict)  # of version 0, by game
    first_payoffs: dict[int, float] = field(default_factory=dict)  # the same, where games pay

    def __post_init__(self) -> None:
        self.gate = Gate(self.buffer)

    @property
    def is_done(self) -> bool:
        """All updates are made."""
        return self.registry.current >= self.config.loop.steps

    def stats_due(self, index: int) -> bool:
        """Whether it is time to ask an actor for its numbers; if so, it counts as asked."""
        due = time.monotonic() - self.asked.get(index, -math.inf) > STATS_EVERY_S
        if due:
            self.asked[index] = time.monotonic()
        return due

    def admit(self, result: GameResult, trajectories: list[Trajectory]) -> None:
        """Let a finished game count: for ratings (its branches do not), guard and next batch."""
        self.registry.record(result)
        self.guard.count(result)
        self.buffer.add(result.spec, trajectories)

    def count(self, ended: GameResult | GameFailure) -> None:
        """The fault border is a game: its failure is counted, and too many of late end the run."""
        if ended.spec.purpose == "train":  # an evaluation numbers its games anew
            self.in_flight.pop(ended.spec.game_id, None)
        if isinstance(ended, GameResult):
            self.recent.append(False)
            return
        self.tracker.add_failure(ended)
        if ended.spec.purpose == "train":
            self.buffer.lose(ended.spec)
        if ended.spent is not None and self.schedule.leave_out(ended.spent):
            self.tracker.print(ended.error)
        self.recent.append(ended.spent is None)  # what a cap was set for is no fault
        self.failures += 1
        allowed, failures = self.config.loop.max_failures, sum(self.recent)
        if failures > allowed:
            raise RuntimeError(
                f"{failures} of the last {len(self.recent)} games failed, more than "
                f"loop.max_failures = {allowed}; the last one: {ended.error}"
            )
