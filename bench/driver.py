"""Cost of a finished game for the driver: its own loop, with actors that only replay games.

The loop of asynchronous play is complete (gate, schedule, Ray, reward terms, tracker with a run's
files, ratings, guard, buffer). Actors are separate processes whose collectors return recorded
TicTacToe games under the specs that they receive. The learner answers at once, and writes nothing.

- games/s: wall-clock rate of the games between `--warm` and the end.
- us per game: CPU time of the loop's thread (Ray's part in it included), and of the whole process.
- by part: in another run (`--parts`), whose timers cost about a microsecond per call.
- RSS: of the driver, from `--warm` to the end.

`--pool 200` starts with 200 past versions in the pool, drawn by the rule that `--past` names.

Run: python -m bench.driver [--actors 7] [--in-flight 384] [--games 20000] [--rate 0] [--parts]
"""

import argparse
import asyncio
import contextlib
import os
import pickle
import random
import tempfile
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from time import perf_counter, process_time, thread_time
from typing import Any
from unittest.mock import patch

import psutil
from msgspec.structs import replace

from bench import forks, parser
from bench.orchestration import ScriptedEngine, TextTokenizer, free_cell, self_play
from unstable.collectors.collector import Collector
from unstable.config import RunConfig, parse
from unstable.loop import state
from unstable.loop.context import Context
from unstable.loop.protocols import HeldVersion
from unstable.loop.train import train
from unstable.planning.machine import LOOPBACK, Placement
from unstable.records.folder import RunFolder
from unstable.records.games import sample_lines
from unstable.rewards.terms import Rewards
from unstable.runtime import actors as actors_module
from unstable.runtime import learner_ranks
from unstable.runtime.actors import RemoteActor
from unstable.runtime.cluster import cluster
from unstable.runtime.inside import ActorProcess, LearnerProcess, collect_rarely
from unstable.runtime.judge import judging
from unstable.runtime.learner_ranks import RemoteLearner
from unstable.runtime.local import LocalActor
from unstable.tracking.tracker import Tracker
from unstable.types import (
    Adapter,
    Answer,
    GameResult,
    GameSpec,
    PackedBatch,
    PlayerId,
    Turn,
    Update,
)
from unstable.types.processes import ProcessId

RECORDED = 256
"""Number of games that are played once and then replayed."""
SECONDS = "BENCH_DRIVER_SECONDS"
"""Environment variable with a game's mean seconds, for the actors' processes."""


def record(config: RunConfig) -> list[GameResult]:
    """Return games of random legal moves, as a collector returns them."""
    return asyncio.run(_record(config))


async def _record(config: RunConfig) -> list[GameResult]:
    from unstable.models.base import load_tokenizer

    tokenizer = load_tokenizer(config.model)
    collector = Collector(config, ScriptedEngine(free_cell(tokenizer)), tokenizer)
    found = [result async for result in collector.play(self_play(range(RECORDED)))]
    return [result for result in found if isinstance(result, GameResult)]


class ReplayCollector(Collector):
    """A collector that returns recorded games after a delay instead of playing."""

    def __init__(self, config: RunConfig, recorded: Sequence[GameResult], seconds: float) -> None:
        super().__init__(config, ScriptedEngine(lambda ids, seed: []), TextTokenizer())
        self._recorded = recorded
        self._seconds = seconds
        self._made: dict[tuple[int, tuple[PlayerId, ...]], list[Turn]] = {}

    async def _play_game(
        self, spec: GameSpec, shared: Sequence[Turn] = (), first: Answer | None = None
    ) -> GameResult:
        await asyncio.sleep(self._seconds * (0.5 + random.Random(spec.game_id).random()))
        index = spec.game_id % len(self._recorded)
        place = index, tuple(seat.player for seat in spec.seats)
        if place not in self._made:
            if len(self._made) > 16 * RECORDED:
                self._made.clear()
            self._made[place] = [_played_by(turn, spec) for turn in self._recorded[index].turns]
        return replace(self._recorded[index], spec=spec, turns=self._made[place])


def _played_by(turn: Turn, spec: GameSpec) -> Turn:
    """Return the turn with the player of its seat in the spec."""
    player, sampled = spec.seats[turn.seat].player, turn.answer.sampled
    assert sampled is not None
    own = None if player.version is None else replace(sampled, version=player.version)
    return replace(turn, answer=replace(turn.answer, player=player, sampled=own))


class ReplayActor(LocalActor):
    """An actor without a model, which ignores published weights."""

    async def publish(self, version: PlayerId, adapter: Adapter | None = None) -> None: ...

    async def announce(self, version: PlayerId) -> None:
        self.collector.announce(version)


class ReplayProcess(ActorProcess):
    """An actor's process without a model."""

    async def start(self) -> ProcessId:
        recorded = pickle.loads((self._folder.root / "recorded.pickle").read_bytes())
        config, engine = self._config, ScriptedEngine(lambda ids, seed: [])
        tokenizer = TextTokenizer()
        rewards = judging(config, self._folder)
        self._actor = ReplayActor(config, self._folder, engine, tokenizer, rewards)
        self._actor.collector = ReplayCollector(config, recorded, float(os.environ[SECONDS]))
        collect_rarely()
        return ProcessId.own()


class IdleLearner:
    """A learner that makes each version at once; it only unpacks batches and writes lines."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._version = 0

    async def update(self, batch: PackedBatch) -> Update:
        opened = batch.opened()
        advantages = [0.5] * len(opened.samples)
        lines = sample_lines(opened, advantages)
        self._version = batch.version + 1
        return Update(version=self._version, metrics={}, advantages=advantages, lines=lines)

    async def keep(self) -> int:
        return self._version

    async def hold(self) -> HeldVersion:
        learner: Any = self  # has the methods that the loop needs
        return HeldVersion(self._version, learner)

    async def adapter(self, version: int) -> None: ...

    async def save(self, version: int) -> None:
        self._folder.checkpoint(version).mkdir(parents=True, exist_ok=True)


class IdleProcess(LearnerProcess):
    """A learner's process without a model."""

    def start(self, meeting: tuple[str, int] | None) -> ProcessId:
        self._learner = IdleLearner(self._folder)  # type: ignore[assignment]
        collect_rarely()
        return ProcessId.own()


class Meter:
    """Timers and memory from the moment at which `warm` games have ended."""

    def __init__(self, warm: int) -> None:
        self._warm = warm
        self._process = psutil.Process()
        self.games = -warm
        self.rss: list[int] = []

    def add(self) -> None:
        self.games += 1
        if self.games == 0:
            self.began = perf_counter(), thread_time(), process_time()
        if self.games >= 0 and self.games % 1000 == 0:
            self.rss.append(self._process.memory_info().rss)

    def print(self) -> None:
        wall, loop, process = (
            now - then
            for now, then in zip(
                (perf_counter(), thread_time(), process_time()), self.began, strict=True
            )
        )
        games = self.games
        print(
            f"{games} games in {wall:.1f} s: {games / wall:.0f} games/s; a game costs the loop's "
            f"thread {1e6 * loop / games:.0f} us (busy {100 * loop / wall:.0f} %), the process "
            f"{1e6 * process / games:.0f} us"
        )
        first, last = self.rss[0], len(self.rss) - 1
        rises = [f"{(self.rss[last * n // 10] - first) / 1e6:+.1f}" for n in range(1, 11)]
        print(f"RSS {first / 1e6:.0f} MB, increase after each tenth {', '.join(rises)} MB")


PARTS: list[tuple[str, str, str]] = [
    ("lines, metrics, view", "tracker", "add_games"),
    ("ratings", "registry", "record"),
    ("guard", "guard", "count"),
    ("buffer", "buffer", "add"),
    ("gate", "gate", "leave"),
    ("schedule", "schedule", "draw"),
    ("a version's opponents", "registry", "announce"),
    ("an update's samples and row", "tracker", "log_samples"),
    ("an update's samples and row", "tracker", "end_update"),
]
"""Timed methods: label, the context's attribute with the object, and the method."""


def timed(context: Context, meter: Meter) -> dict[str, float]:
    """Start timing the parts; returns a dict that accumulates their CPU seconds."""
    spent: dict[str, float] = defaultdict(float)
    for part, owner, name in PARTS:
        thing = getattr(context, owner)
        setattr(thing, name, _timed(getattr(thing, name), part, spent, meter))
    state.save = _timed(state.save, "an update's state", spent, meter)
    return spent


def _timed(
    function: Callable[..., Any], part: str, spent: dict[str, float], meter: Meter
) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        began = thread_time()
        try:
            return function(*arguments, **named)
        finally:
            if meter.games >= 0:
                spent[part] += thread_time() - began

    return call


async def run(
    config: RunConfig, folder: RunFolder, actors: int, meter: Meter, pool: int, *, parts: bool
) -> dict[str, float]:
    """Run the loop until its last update; returns the seconds of each part, empty without `parts`.

    It starts with the version that has `pool` versions before it.
    """
    remote = [RemoteActor(config, folder, index, Placement(LOOPBACK)) for index in range(actors)]
    learner = RemoteLearner(config, folder, [Placement(LOOPBACK)], threads=1)
    await asyncio.gather(learner.start(), *(actor.start() for actor in remote))
    tracker = Tracker(config, folder)
    tracker.print = lambda line: None
    rewards = Rewards(config.buffer.rewards, config.judges)
    context = Context(config, folder, [*remote], learner, tracker, rewards)
    if pool:
        await fill(context, pool)
    count = context.count

    def counted(ended: Any) -> None:
        count(ended)
        meter.add()

    context.count = counted  # type: ignore[method-assign]
    spent = timed(context, meter) if parts else {}
    try:
        with tracker.refreshing():
            await train(context)
            meter.print()
        return spent
    finally:
        await asyncio.gather(*(actor.close() for actor in remote))
        tracker.close()


async def fill(context: Context, pool: int) -> None:
    """Make the run resume from the version that has `pool` versions before it."""
    for player in map(context.player, range(pool + 1)):
        context.registry.add(player)
        context.registry.announce(player)
        context.versions.published.add(player)
        await asyncio.gather(*(actor.publish(player) for actor in context.actors))
    context.versions.trained, context.versions.finalized = pool, True
    await asyncio.gather(*(actor.announce(context.current) for actor in context.actors))


def configured(arguments: argparse.Namespace) -> RunConfig:
    """Return a config of asynchronous play, with as many updates as the games allow."""
    samples, batch = 5 * (arguments.games + arguments.warm), arguments.batch
    return parse(
        {
            "actors": {"num": arguments.actors, "games_in_flight": arguments.in_flight},
            "buffer": {"capacity": 8 * batch},
            "opponents": {"past": arguments.past, "pool_size": max(32, arguments.pool)},
            "eval": {"every": 0, "exploitability": {"every": 0}},
            "learner": {"batch_size": batch},
            "loop": {"mode": "async", "steps": arguments.pool + max(1, samples // batch)},
            "tracking": {"dashboard": "off"},
        }
    )


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(
        __doc__,
        actors=7,
        in_flight=384,
        games=20_000,
        warm=(4_000, "warm-up games"),
        batch=(4096, "samples per update"),
        rate=(0.0, "games per second of all actors; 0: unlimited"),
        pool=(0, "past versions at the start"),
        past=("uniform", "rule that samples them as opponents"),
    )
    options.add_argument("--parts", action="store_true", help="print the cost of each part")
    arguments = options.parse_args(argv)
    config, meter = configured(arguments), Meter(arguments.warm)
    in_flight = arguments.actors * arguments.in_flight
    seconds = in_flight / arguments.rate if arguments.rate else 0.0
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, {SECONDS: str(seconds)}))
        stack.enter_context(patch.object(actors_module, "ActorProcess", ReplayProcess))
        stack.enter_context(patch.object(learner_ranks, "LearnerProcess", IdleProcess))
        stack.enter_context(patch.object(state, "save", state.save))  # undoes `timed`
        folder = RunFolder(Path(scratch))
        with ProcessPoolExecutor(1, forks("bench.driver")) as pool:
            recorded = pool.submit(record, config).result()  # the driver loads no tokenizer
        (folder.root / "recorded.pickle").write_bytes(pickle.dumps(recorded))
        turns = sum(len(result.turns) for result in recorded) / len(recorded)
        print(f"{arguments.actors} actors of {arguments.in_flight} games of {turns:.1f} turns")
        stack.enter_context(cluster(arguments.actors + 2))
        parts, pool = arguments.parts, arguments.pool
        spent = asyncio.run(run(config, folder, arguments.actors, meter, pool, parts=parts))
    for part, seconds in spent.items():
        print(f"{part:32} {1e6 * seconds / meter.games:6.1f} us per game")
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
