"""Soak test: during 45 minutes of games at full speed, only the files grow.

The loop, the collector, the buffer, the learner and the files are real, in a child process; the
engine is scripted and fails occasionally. `pytest -m slow -s tests/chaos/test_soak.py` prints the
slopes.
"""

import asyncio
import ctypes
import gc
import json
import logging
import multiprocessing
import os
import random
import sys
import threading
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from tests.chaos.victim import SeededEngine, scripted_actor
from tests.helpers.loop import make_context
from unstable.engines.base import SamplingRequest
from unstable.league.schedule import Schedule
from unstable.loop.context import Context
from unstable.loop.train import train
from unstable.records.folder import RunFolder
from unstable.records.logs import LOG_BYTES, OLDER_FILES, logging_to
from unstable.runtime.local import LocalActor
from unstable.types import Completion

GAMES = 10_000
"""`run.sh --config smollm2` makes 52 updates of 1,024 turns in 40 min 21 s on two cores
(docs/results.md): 22 turns per second, 60,000 turns in 45 minutes, in games of about six turns
after their openings. Memory kept per game shows up as a sum over all games; the bounds (`MOST`)
are below the size of one table entry per game."""
IN_FLIGHT = 384
EVERY = 250
"""Games between two measurements."""
WARM_UP = 0.25
"""Share of measurements that is skipped: caches fill, and the display keeps 200 games."""
FAILS = 2000
"""Mean number of turns per failing turn, which ends its game."""
TURN_S = (0.1, 0.4)
"""Long enough that most games in flight wait for the engine, not for each other."""
MOST = {
    "rss": 20e6,
    "tables": 0.2e6,
    "objects": 5000,
    "tasks": 100,
    "descriptors": 0.9,
    "threads": 0.9,
}
"""Largest increase of each along the fitted line, from warm-up to end, in bytes or counts."""
TABLES = (dict, set, deque)


class SlowEngine(SeededEngine):
    """Engine that takes time and fails at some seeds, as a real one may."""

    async def generate(self, request: SamplingRequest) -> Completion:
        seed = request.seed
        await asyncio.sleep(random.Random(seed).uniform(*TURN_S))
        if seed % FAILS == 0:
            raise ValueError(f"a prompt of {len(request.prompt_ids)} tokens is not answered")
        return await super().generate(request)


@dataclass(frozen=True)
class Measured:
    """Resources that the process holds after `games` games."""

    games: int
    in_flight: float
    rss: int  # bytes
    objects: int  # tracked by the garbage collector, created since the start
    tables: int  # bytes of dicts, sets and deques, without their elements
    descriptors: int
    tasks: int
    threads: int


def measure(context: Context) -> Measured:
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # return the allocator's free memory
    objects = gc.get_objects()
    (actor,), process = context.actors, psutil.Process()
    assert isinstance(actor, LocalActor)
    return Measured(
        games=context.tracker.view.games,
        in_flight=actor.collector.stats()["games_in_flight"],
        rss=process.memory_info().rss,
        objects=len(objects),
        tables=sum(sys.getsizeof(each) for each in objects if isinstance(each, TABLES)),
        descriptors=process.num_fds(),
        tasks=len(asyncio.all_tasks()),
        threads=threading.active_count(),
    )


async def watch(context: Context, games: int) -> list[Measured]:
    """Measure the process every `EVERY` games until `games` games are played."""
    found: list[Measured] = []
    for mark in range(EVERY, games + 1, EVERY):
        while context.tracker.view.games < mark:
            await asyncio.sleep(0.001)
        found.append(measure(context))
    return found


async def live(model: Path, run_dir: Path, games: int) -> list[Measured]:
    gc.collect()
    gc.freeze()  # as an actor does: exclude libraries from collection and measurement
    fixed = [{"kind": "random"}, {"kind": "expert"}]
    context = make_context(
        model,
        run_dir,
        num_actors=0,
        opponents={"draw": {"self": 1, "past": 1, "fixed": 1}, "fixed": fixed},
        actors={"games_in_flight": IN_FLIGHT},
        learner={"batch_size": 1024, "micro_batch_size": 256, "learning_rate": 1e-3},
        eval={"every": 20, "games": 16},
        loop={"mode": "async", "steps": 10_000},
    )
    context.actors = [scripted_actor(context.config, context.folder, SlowEngine)]
    context.schedule = Schedule(context.config, num_actors=1)
    with logging_to(context.folder, "loop"), context.tracker.refreshing():
        training = asyncio.create_task(train(context))
        watching = asyncio.create_task(watch(context, games))
        await asyncio.wait([training, watching], return_when=asyncio.FIRST_COMPLETED)
        if training.done():
            training.result()
        training.cancel()
        await asyncio.gather(training, return_exceptions=True)
        return await watching


def main(model: Path, run_dir: Path, games: int) -> None:
    """Run in a child process; output and measurements are written next to the run's folder."""
    torch.set_num_threads(1)
    with run_dir.with_suffix(".txt").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    logging.captureWarnings(True)
    found = asyncio.run(live(model, run_dir, games))
    run_dir.with_suffix(".json").write_text(json.dumps([asdict(each) for each in found]))


def rise(rows: list[dict[str, float]], name: str) -> float:
    """Return the increase of the line fitted to a figure, over all games of the rows."""
    games = np.array([row["games"] for row in rows])
    slope, _ = np.polyfit(games, np.array([row[name] for row in rows]), 1)
    return float(slope * (games[-1] - games[0]))


def report(rows: list[dict[str, float]], folder: RunFolder) -> None:
    games = rows[-1]["games"] - rows[0]["games"]
    print(f"\n{rows[0]['games']} to {rows[-1]['games']} games:")
    for name in ("in_flight", *MOST):
        values = [row[name] for row in rows]
        total = rise(rows, name)
        print(f"{name}: {min(values)} to {max(values)}, {total:+.1f}, {total / games:.4f} per game")
    for part in sorted(folder.root.iterdir()):
        files = [path for path in [part, *part.rglob("*")] if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        print(f"{part.name}: {len(files)} files, {size} B, {size / rows[-1]['games']:.1f} per game")


@pytest.mark.tables("soak", 1)
@pytest.mark.slow
def test_resources_do_not_grow_with_games(tiny_folder: Path, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    process = multiprocessing.get_context("spawn").Process(
        target=main, args=(tiny_folder, folder.root, GAMES)
    )
    process.start()
    process.join()
    assert process.exitcode == 0, (tmp_path / "run.txt").read_text()
    rows = json.loads((tmp_path / "run.json").read_text())
    rows = rows[int(WARM_UP * len(rows)) :]
    report(rows, folder)
    assert max(row["in_flight"] for row in rows) > 0.9 * IN_FLIGHT
    for name, most in MOST.items():
        assert rise(rows, name) < most, name
    logs = [path.stat().st_size for path in folder.log("loop").parent.iterdir()]
    assert 0 < sum(logs) <= (1 + OLDER_FILES) * LOG_BYTES
