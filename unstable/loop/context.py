"""What a run consists of, and what all its actors do together."""

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, NamedTuple, TypeVar

from unstable.buffers.buffer import Buffer
from unstable.buffers.gate import Gate
from unstable.config import RunConfig
from unstable.datasets.offline import OfflineData
from unstable.league.curriculum import Curriculum
from unstable.league.guard import Guard
from unstable.league.matchmaking import Matchmaker
from unstable.league.past import PastResults
from unstable.league.ratings import Registry
from unstable.league.schedule import Schedule
from unstable.loop.ended import Ended
from unstable.loop.protocols import Actor, HeldVersion, Learner, RewardTerms
from unstable.records.folder import RunFolder
from unstable.tracking.tracker import Tracker
from unstable.types import (
    MAIN,
    Exploitability,
    GameFailure,
    GameResult,
    GameSpec,
    PlayedGame,
    PlayerId,
)

STATS_EVERY_S = 2.0
RECENT_GAMES = 100
"""Games that failures are a share of."""
MAX_REFILLS = 10
"""Batches of samples of tied groups that are dropped for one update before the run stops."""
HELD_OUT_LOSS = "offline/held_out_loss"
T = TypeVar("T")


@contextlib.asynccontextmanager
async def sleeping(actors: Sequence[Actor], config: RunConfig) -> AsyncIterator[None]:
    """Actors that share the learner's GPU by turns give it its memory meanwhile."""
    by_turns = config.actors.share_gpu == "sleep"
    if by_turns:
        await asyncio.gather(*(actor.sleep() for actor in actors))
    try:
        yield
    finally:
        if by_turns:
            await asyncio.gather(*(actor.wake() for actor in actors))


async def exploit(actors: Sequence[Actor], game: str, player: PlayerId) -> Exploitability:
    """Measure how exploitable a version is in a game that is solved exactly."""
    began = time.time()
    probabilities = await decide(actors, game, player)
    assert player.version is not None
    return await actors[0].assess(game, player.version, probabilities, began, {})


async def decide(actors: Sequence[Actor], game: str, player: PlayerId) -> dict[int, list[float]]:
    """A version's probabilities at all decisions of such a game; each actor scores a part."""
    count = len(actors)
    parts = await asyncio.gather(
        *(actor.decide(game, player, part, count) for part, actor in enumerate(actors))
    )
    return {number: row for part in parts for number, row in part.items()}


async def distribute(
    specs: Sequence[GameSpec],
    actors: Sequence[Actor],
    play: Callable[[int, Sequence[GameSpec]], Awaitable[list[T]]],
) -> list[T]:
    """Play an even share of the games on each actor; `play` has an actor's index and its games."""
    count = len(actors)
    played = await asyncio.gather(*(play(index, specs[index::count]) for index in range(count)))
    return list(chain(*played))


class Interrupt:
    """A person's wish to end the run: at once, or as soon as the updates in progress are over."""

    def __init__(self) -> None:
        self.wanted = False
        self._updates: list[int] = []

    @property
    def deferred_by(self) -> str:
        """The last of the updates that are finished first, in words; empty if there is none."""
        return f"update {max(self._updates)}" if self._updates else ""

    @contextlib.contextmanager
    def deferred(self, update: int) -> Iterator[None]:
        """Finish what makes or publishes an update first, given by the version that it makes.

        At its end, unless another one is in progress, `CancelledError` is raised if the wish came
        meanwhile.
        """
        self._updates.append(update)
        try:
            yield
        finally:
            self._updates.remove(update)
        if self.wanted and not self._updates:
            raise asyncio.CancelledError


class Backlog(Generic[T]):
    """Work of one task for another, in order; `items` are not done yet, the oldest first."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self._changed = asyncio.Condition()

    async def add(self, item: T) -> None:
        """Have it done too."""
        async with self._changed:
            self.items.append(item)
            self._changed.notify_all()

    async def until(self, most: int) -> None:
        """Wait until at most so many are left."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.items) <= most)

    async def each(self) -> AsyncIterator[T]:
        """One after the other, for ever; an item is done when the next is asked for."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: bool(self.items))
            yield self.items[0]
            async with self._changed:
                del self.items[0]
                self._changed.notify_all()


class Made(NamedTuple):
    """A version that the learner has made and holds, and the one that its rating begins as."""

    held: HeldVersion
    inherits_from: int


def make_buffer(config: RunConfig) -> Buffer:
    """The buffer of a run."""
    assert isinstance(config.buffer.capacity, int), "planning resolves auto"
    batch_size = config.learner.batch_size
    return Buffer(
        config.buffer.capacity,
        batch_size,
        config.buffer.max_staleness,
        MAX_REFILLS * batch_size if config.groups.drop_tied else None,
    )


def make_registry(config: RunConfig, matchmaker: Matchmaker | None = None) -> Registry:
    """The registry of a run; its anchor is the first opponent that is a program of fixed skill.

    Without a `matchmaker` it tells how strong they are, and not who meets whom.
    """
    opponents = config.own_opponents
    programs = [PlayerId(name) for name, opponent in opponents.items() if opponent.is_program]
    anchor = programs[0] if programs else None
    fixed = [PlayerId(name) for name in opponents]
    return Registry(fixed, anchor, config.opponents.pool_size, matchmaker)


@dataclass
class VersionState:
    """Progress of the policy's versions: trained, published, finalized, evaluated."""

    trained: int = 0
    """The learner's version; in asynchronous play it may be ahead of the published one."""
    published: set[PlayerId] = field(default_factory=set)
    """Versions that actors serve."""
    finalized: bool = False
    """The current version has its row; its evaluations are over or in progress."""
    evaluated: int = -1
    """The last version that played its evaluation."""
    evaluated_whole: int = -1
    """In asynchronous play, the last version all of whose evaluations are over."""
    measured: int = -1
    """The last version whose exploitability was measured."""
    judging: set[PlayerId] = field(default_factory=set)
    """Players of the evaluation in progress."""
    kept: set[PlayerId] = field(default_factory=set)
    """Versions that a custom loop still plays against, besides the registry's."""


@dataclass
class Context:
    """All that a run consists of: what it is given, and what it makes of the config.

    `policy` is the name of the policy that is trained.
    """

    config: RunConfig
    folder: RunFolder
    actors: list[Actor]
    learner: Learner
    tracker: Tracker
    rewards: RewardTerms
    exact_games: Sequence[str] = ()  # games whose exploitability is measured
    offline: OfflineData | None = None  # what is trained on where nothing is played
    policy: str = MAIN
    versions: VersionState = field(default_factory=VersionState)
    failures: int = 0
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT_GAMES))  # that failed
    asked: dict[int, float] = field(default_factory=dict)  # when an actor's stats were, by index
    in_flight: dict[int, GameSpec] = field(default_factory=dict)  # in asynchronous play, by id
    publications: Backlog[Made] = field(default_factory=Backlog)  # in asynchronous play
    evaluations: Backlog[int] = field(default_factory=Backlog)  # of these versions; as above
    interrupt: Interrupt = field(default_factory=Interrupt)
    held_out_losses: dict[int, float | None] = field(default_factory=dict)  # by version
    first_scores: dict[int, float] = field(default_factory=dict)  # of version 0, by game
    first_payoffs: dict[int, float] = field(default_factory=dict)  # the same, where games pay
    joined: asyncio.Queue[Actor] = field(default_factory=asyncio.Queue)  # to be taken in
    publishing: asyncio.Lock = field(default_factory=asyncio.Lock)  # or taking an actor in

    def __post_init__(self) -> None:
        config = self.config
        self.buffer = make_buffer(config)
        self.gate = Gate(self.buffer)
        self.registry = make_registry(config, Matchmaker(config.opponents))
        self.past_results = PastResults()
        self.schedule = Schedule(config, len(self.actors))
        self.curriculum = Curriculum(config)
        self.guard = Guard(config)

    def player(self, version: int) -> PlayerId:
        """A version of the policy that is trained."""
        return PlayerId.policy(version, self.policy)

    @property
    def current(self) -> PlayerId:
        """The current version, as games name it."""
        return self.registry.current(self.policy)

    @property
    def past(self) -> list[PlayerId]:
        """The versions before it that games may name as opponents."""
        return self.registry.past(self.policy)

    @property
    def probabilities(self) -> list[float]:
        """Probabilities of meeting each past version; empty where all are alike."""
        return self.registry.probabilities(self.policy)

    @property
    def version(self) -> int:
        """The current version's number."""
        assert self.current.version is not None
        return self.current.version

    @property
    def unevaluated(self) -> list[int]:
        """Versions whose evaluation is on its way or waits for another."""
        return [
            version for version in self.evaluations.items if version > self.versions.evaluated_whole
        ]

    @property
    def evaluates_beside(self) -> bool:
        """Return whether a version is evaluated while others are trained."""
        return bool(self.evaluations.items)

    @property
    def is_done(self) -> bool:
        """Return whether all updates are made."""
        return self.version >= self.config.loop.steps

    @property
    def best_held_out(self) -> int | None:
        """The version with the lowest held-out loss, the first of equal ones."""
        known = {v: loss for v, loss in self.held_out_losses.items() if loss is not None}
        return min(known, key=lambda version: known[version], default=None)

    async def look_at(self, index: int) -> None:
        """Ask an actor for its numbers, where it is time to."""
        if time.monotonic() - self.asked.get(index, -math.inf) > STATS_EVERY_S:
            self.asked[index] = time.monotonic()
            self.tracker.log_actor(index, await self.actors[index].stats())

    def take(self, ended: Ended, actor: int) -> list[PlayedGame]:
        """Count games that have ended at an actor and put them on file; returns the finished ones.

        Raises `RuntimeError` at too many recent failures.
        """
        for failure in (each for each in ended.games if isinstance(each, GameFailure)):
            self.count(failure)
        finished = ended.finished
        for each in finished:
            self.count(each)
        self.tracker.add_games(finished, ended.play, self.version, actor)
        self.guard.count(ended.results)
        return finished

    def admit(self, finished: Sequence[PlayedGame]) -> None:
        """Give finished games to ratings (without their branches) and buffer, in this order."""
        self.rate(finished)
        self.curriculum.count(finished)
        for each in finished:
            self.buffer.add(each.spec, each.trajectories)

    def end_round(self, finished: Iterable[PlayedGame]) -> None:
        """Admit the games of a round of synchronous play, in the order of their ids."""
        self.admit(sorted(finished, key=lambda each: each.spec.game_id))
        self.registry.end_round(self.policy)

    def draw_envs(self) -> None:
        """Draw envs by what each teaches now, from here on: a version has just been announced."""
        self.schedule.envs = self.curriculum.probabilities()
        self.tracker.log(self.curriculum.metrics(self.schedule.envs))
        self.curriculum.fade()

    def rate(self, games: Sequence[GameResult | PlayedGame]) -> None:
        """Record games in the registry and in the results against past versions."""
        self.registry.record(games)
        self.past_results.record(games)

    def log_strengths(self, *, beside: bool = False) -> None:
        """Have the tracker take in how strong versions are; `beside` as `log_evaluation` has it."""
        self.tracker.log_ratings(self.registry.ratings())
        self.tracker.log_worst(self.past_results.least(), beside=beside)

    def count(self, ended: PlayedGame | GameResult | GameFailure) -> None:
        """Count a game that ended or failed; raises `RuntimeError` at too many recent failures."""
        if ended.spec.purpose == "train":  # an evaluation numbers its games anew
            self.in_flight.pop(ended.spec.game_id, None)
        if not isinstance(ended, GameFailure):
            self.recent.append(False)
            return
        self.tracker.add_failure(ended)
        if ended.spec.purpose == "train":
            self.buffer.lose(ended.spec)
        if ended.spent is not None and self.schedule.leave_out(ended.spent):
            self.tracker.print(ended.error)
        self.recent.append(ended.spent is None)  # an opponent's spent budget is no fault
        self.failures += 1
        allowed, failures = self.config.loop.max_failures, sum(self.recent)
        if failures > allowed:
            raise RuntimeError(
                f"{failures} of the last {len(self.recent)} games failed, more than "
                f"loop.max_failures = {allowed}; the last one: {ended.error}"
            )
