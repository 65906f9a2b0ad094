"""`unstable learn` whole, in this process: recorded games, learner, files; Ray alone is left out."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.loop import lines, make_actor, make_context
from unstable.commands.learn import learn, resume
from unstable.config import RunConfig, dump
from unstable.loop.train import train
from unstable.planning.plan import Plan
from unstable.records.folder import RunFolder
from unstable.records.reading import read_rows
from unstable.runtime.local import LocalLearner
from unstable.runtime.processes import Started

NIM: dict[str, Any] = {
    "model": {"name": "tiny", "init": "fresh", "dtype": "float32", "adapter": {"rank": 8}},
    "games": [{"env": "Nim-v0", "args": {"piles": [1, 2, 2]}}],
    "actors": {"games_in_flight": 32},
    "learner": {"batch_size": 64, "micro_batch_size": 64, "learning_rate": 3e-3},
    "eval": {"every": 0, "games": 8, "opponents": ["random"]},
    "loop": {"mode": "sync", "steps": 3},
    "seed": 1,
}


def recorded_run(root: Path, **changes: Any) -> RunFolder:
    """A run that has played Nim by the shipped tiny model, with all its checkpoints."""
    folder = RunFolder(root)
    root.mkdir(parents=True)
    settings = {**NIM, **changes}
    settings["tracking"] = {"run_dir": str(root), "dashboard": "off", "keep_checkpoints": 9}
    context = make_context(root, root, **settings)
    folder.config.write_text(dump(context.config.updated({"tracking.run_dir": None})))
    asyncio.run(train(context))
    context.tracker.close()
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Three updates of self-play."""
    return recorded_run(tmp_path_factory.mktemp("recorded") / "run")


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextlib.asynccontextmanager
    async def processes(
        config: RunConfig, plan: Plan, folder: RunFolder, *shown: Any
    ) -> AsyncIterator[Started]:
        learner = LocalLearner(config, folder)
        yield Started([make_actor(config, folder)], learner, asyncio.Queue())

    monkeypatch.setattr("unstable.runtime.processes.processes", processes)


def test_smoke(run: RunFolder, tmp_path: Path) -> None:
    overrides = {
        "learner.algorithm.name": "rft", "tracking.run_dir": str(tmp_path / "new"),
        "learn.held_out": 0.2, "learn.epochs": 2, "tracking.dashboard": "off", "eval.every": 2,
    }
    new = learn([run.root], overrides)
    for row in read_rows(new.metrics):
        print({k: v for k, v in row.items() if k.startswith(("offline", "version", "learn/loss", "eval")) })
    print(sorted(read_rows(new.metrics)[-1]))
    print(new.offline.read_text(), new.versions())
    assert 0
