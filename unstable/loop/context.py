"""Context of a run: its parts, and operations on all of its actors."""

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
"""Number of most recent games among which failures count."""
MAX_REFILLS = 10
"""Maximum samples of tied groups that are dropped for one update, in batches."""
HELD_OUT_LOSS = "offline/held_out_loss"
T = TypeVar("T")


@contextlib.asynccontextmanager
async def sleeping(actors: Sequence[Actor], config: RunConfig) -> AsyncIterator[None]:
    """Put actors to sleep during the block if they alternate with the learner on its GPU."""
    by_turns = config.actors.share_gpu == "sleep"
    if by_turns:
        await asyncio.gather(*(actor.sleep() for actor in actors))
    try:
        yield
    finally:
        if by_turns:
            await asyncio.gather(*(actor.wake() for actor in actors))


async def exploit(actors: Sequence[Actor], game: str, player: PlayerId) -> Exploitability:
    """Return how exploitable a version is in a game that is solved exactly."""
    began = time.time()
    probabilities = await decide(actors, game, player)
    assert player.version is not None
    return await actors[0].assess(game, player.version, probabilities, began, {})


async def decide(actors: Sequence[Actor], game: str, player: PlayerId) -> dict[int, list[float]]:
    """Return a version's probabilities of actions by decision of a solved game.

    Each actor scores a part of the decisions.
    """
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
    """Play an even share of the games on each actor by `play(actor_index, games)`."""
    count = len(actors)
    played = await asyncio.gather(*(play(index, specs[index::count]) for index in range(count)))
    return list(chain(*played))


class Interrupt:
    """A user's request to end the run, at once or after the updates in progress."""

    def __init__(self) -> None:
        self.wanted = False
        self._updates: list[int] = []

    @property
    def deferred_by(self) -> str:
        """Name of the last update that must finish first, such as "update 7"; empty if none."""
        return f"update {max(self._updates)}" if self._updates else ""

    @contextlib.contextmanager
    def deferred(self, update: int) -> Iterator[None]:
        """Defer interrupts while the block makes or publishes `update`, the version that it makes.

        After the block, raises `CancelledError` if an interrupt was requested and no other update
        is in progress.
        """
        self._updates.append(update)
        try:
            yield
        finally:
            self._updates.remove(update)
        if self.wanted and not self._updates:
            raise asyncio.CancelledError


class Backlog(Generic[T]):
    """A queue of work between two tasks; `items` are the unfinished ones, oldest first."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self._changed = asyncio.Condition()

    async def add(self, item: T) -> None:
        """Append an item."""
        async with self._changed:
            self.items.append(item)
            self._changed.notify_all()

    async def until(self, most: int) -> None:
        """Wait until at most `most` items are unfinished."""
        async with self._changed:
            await self._changed.wait_for(lambda: len(self.items) <= most)

    async def each(self) -> AsyncIterator[T]:
        """Yield items in order, forever; requesting the next item marks the previous as done."""
        while True:
            async with self._changed:
                await self._changed.wait_for(lambda: bool(self.items))
            yield self.items[0]
            async with self._changed:
                del self.items[0]
                self._changed.notify_all()


class Made(NamedTuple):
    """A version that the learner has made and holds, and the version whose rating it inherits."""

    held: HeldVersion
    inherits_from: int


def make_registry(config: RunConfig, matchmaker: Matchmaker | None = None) -> Registry:
    """Return the registry of a run, anchored at the first opponent that is a fixed program.

    Without a `matchmaker` the registry rates players but draws no opponents.
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
    """True if the current version has its row; its evaluations have ended or are in progress."""
    evaluated: int = -1
    """The last version that played its evaluation."""
    evaluated_whole: int = -1
    """The last version whose evaluations have all ended, in asynchronous play."""
    measured: int = -1
    """The last version whose exploitability was measured."""
    judging: set[PlayerId] = field(default_factory=set)
    """Players of the evaluation in progress."""
    kept: set[PlayerId] = field(default_factory=set)
    """Versions that a custom loop still plays against, in addition to the registry's."""


@dataclass
class Context:
    """All parts of a run: the ones passed in, and the ones made from the config.

    `policy` is the name of the policy that is trained.
    """

    config: RunConfig
    folder: RunFolder
    actors: list[Actor]
    learner: Learner
    tracker: Tracker
    rewards: RewardTerms
    exact_games: Sequence[str] = ()  # games whose exploitability is measured
    offline: OfflineData | None = None  # recorded games to train on; None: games are played
    policy: str = MAIN
    versions: VersionState = field(default_factory=VersionState)
    failures: int = 0
    recent: deque[bool] = field(default_factory=lambda: deque(maxlen=RECENT_GAMES))  # True: failed
    asked: dict[int, float] = field(default_factory=dict)  # time of an actor's last stats, by index
    in_flight: dict[int, GameSpec] = field(default_factory=dict)  # in asynchronous play, by id
    publications: Backlog[Made] = field(default_factory=Backlog)  # in asynchronous play
    evaluations: Backlog[int] = field(default_factory=Backlog)  # versions, in asynchronous play
    interrupt: Interrupt = field(default_factory=Interrupt)
    held_out_losses: dict[int, float | None] = field(default_factory=dict)  # by version
    first_scores: dict[int, float] = field(default_factory=dict)  # of version 0, by game
    first_payoffs: dict[int, float] = field(default_factory=dict)  # of version 0, by game
    joined: asyncio.Queue[Actor] = field(default_factory=asyncio.Queue)  # actors that joined
    publishing: asyncio.Lock = field(default_factory=asyncio.Lock)  # also held to add an actor

    def __post_init__(self) -> None:
        config = self.config
        assert isinstance(config.buffer.capacity, int), "planning resolves auto"
        batch_size = config.learner.batch_size
        self.buffer = Buffer(
            config.buffer.capacity,
            batch_size,
            config.buffer.max_staleness,
            MAX_REFILLS * batch_size if config.groups.drop_tied else None,
        )
        self.gate = Gate(self.buffer)
        self.registry = make_registry(config, Matchmaker(config.opponents))
        self.past_results = PastResults()
        self.schedule = Schedule(config, len(self.actors))
        self.curriculum = Curriculum(config)
        self.guard = Guard(config)

    def player(self, version: int) -> PlayerId:
        """Return the player that is a version of the trained policy."""
        return PlayerId.policy(version, self.policy)

    @property
    def current(self) -> PlayerId:
        """The current version, as games name it."""
        return self.registry.current(self.policy)

    @property
    def past(self) -> list[PlayerId]:
        """Past versions that games may name as opponents."""
        return self.registry.past(self.policy)

    @property
    def probabilities(self) -> list[float]:
        """Probabilities of meeting each past version; empty if all are equal."""
        return self.registry.probabilities(self.policy)

    @property
    def version(self) -> int:
        """The current version's number."""
        assert self.current.version is not None
        return self.current.version

    @property
    def unevaluated(self) -> list[int]:
        """Versions whose evaluation is in progress or waiting."""
        return [
            version for version in self.evaluations.items if version > self.versions.evaluated_whole
        ]

    @property
    def evaluates_beside(self) -> bool:
        """True if a version is evaluated while others are trained."""
        return bool(self.evaluations.items)

    @property
    def is_done(self) -> bool:
        """True if all updates are made."""
        return self.version >= self.config.loop.steps

    @property
    def best_held_out(self) -> int | None:
        """The version with the lowest held-out loss, first among ties; None if none is known."""
        known = {v: loss for v, loss in self.held_out_losses.items() if loss is not None}
        return min(known, key=lambda version: known[version], default=None)

    async def look_at(self, index: int) -> None:
        """Log an actor's counters, at most every `STATS_EVERY_S` seconds."""
        if time.monotonic() - self.asked.get(index, -math.inf) > STATS_EVERY_S:
            self.asked[index] = time.monotonic()
            self.tracker.log_actor(index, await self.actors[index].stats())

    def take(self, ended: Ended, actor: int) -> list[PlayedGame]:
        """Count and record games that have ended at an actor; return the finished ones.

        Raises `RuntimeError` if too many recent games have failed.
        """
        for failure in (each for each in ended.games if isinstance(each, GameFailure)):
            self.count(failure)
        finished = ended.finished
        for each in finished:
            self.count(each)
        self.tracker.add_games(finished, ended.play, self.version, actor)
        self.guard.count(ended.play)
        return finished

    def admit(self, finished: Sequence[PlayedGame]) -> None:
        """Add finished games to ratings (without their branches), curriculum and buffer."""
        self.rate(finished)
        self.curriculum.count(finished)
        for each in finished:
            self.buffer.add(each.spec, each.trajectories)

    def end_round(self, finished: Iterable[PlayedGame]) -> None:
        """Admit the games of a round of synchronous play, in the order of their ids."""
        self.admit(sorted(finished, key=lambda each: each.spec.game_id))
        self.registry.end_round(self.policy)

    def draw_envs(self) -> None:
        """Update the probabilities of envs by what each teaches now, for a new version."""
        self.schedule.envs = self.curriculum.probabilities()
        self.tracker.log(self.curriculum.metrics(self.schedule.envs))
        self.curriculum.fade()

    def rate(self, games: Sequence[GameResult | PlayedGame]) -> None:
        """Record games in the registry and in the results against past versions."""
        self.registry.record(games)
        self.past_results.record(games)

    def log_strengths(self, *, beside: bool = False) -> None:
        """Log the ratings and the worst-case results; `beside` is passed to `log_worst`."""
        self.tracker.log_ratings(self.registry.ratings())
        self.tracker.log_worst(self.past_results.least(), beside=beside)

    def count(self, ended: PlayedGame | GameResult | GameFailure) -> None:
        """Count an ended game; raise `RuntimeError` if too many recent games have failed."""
        if ended.spec.purpose == "train":  # evaluations have their own game ids
            self.in_flight.pop(ended.spec.game_id, None)
        if not isinstance(ended, GameFailure):
            self.recent.append(False)
            return
        self.tracker.add_failure(ended)
        if ended.spec.purpose == "train":
            self.buffer.lose(ended.spec)
        if ended.spent is not None and self.schedule.leave_out(ended.spent):
            self.tracker.print(ended.error)
        self.recent.append(ended.spent is None)  # an exhausted budget is no fault
        self.failures += 1
        allowed, failures = self.config.loop.max_failures, sum(self.recent)
        if failures > allowed:
            raise RuntimeError(
                f"{failures} of the last {len(self.recent)} games failed, more than "
                f"loop.max_failures = {allowed}; the last failure: {ended.error}"
            )
