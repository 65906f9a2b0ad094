"""A run with recorded games, and runs on recorded games in this process."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from tests.helpers.loop import make_actor, make_context
from unstable.config import RunConfig, dump
from unstable.loop.train import train
from unstable.planning.plan import Plan
from unstable.records.folder import RunFolder
from unstable.runtime.local import LocalLearner
from unstable.runtime.processes import Started
from unstable.types import PackedBatch, TokenSample, Update

NIM: dict[str, Any] = {
    "model": {"name": "tiny", "init": "fresh", "dtype": "float32", "adapter": {"rank": 8}},
    "games": [{"env": "Nim-v0", "args": {"piles": [1, 2, 2]}}],
    "actors": {"games_in_flight": 32},
    "learner": {"batch_size": 64, "micro_batch_size": 64, "learning_rate": 3e-3},
    "eval": {"every": 0, "games": 8, "opponents": ["random"]},
    "loop": {"mode": "sync", "steps": 3},
    "seed": 1,
}


class MortalLearner(LocalLearner):
    """An in-process learner that raises `dies_of` when asked to update version `dies_at`."""

    dies_at: int | None = None
    dies_of: type[BaseException] = KeyboardInterrupt

    async def update(self, batch: PackedBatch) -> Update:
        self._die()
        return await super().update(batch)

    async def imitate(self, samples: Sequence[TokenSample]) -> Update:
        self._die()
        return await super().imitate(samples)

    def _die(self) -> None:
        if self.learner.version == self.dies_at:
            raise self.dies_of


@contextlib.asynccontextmanager
async def processes(
    config: RunConfig, plan: Plan, folder: RunFolder, *shown: Any, **said: Any
) -> AsyncIterator[Started]:
    """An actor and a learner of this process, in place of `runtime.processes.processes`."""
    yield Started([make_actor(config, folder)], MortalLearner(config, folder), asyncio.Queue())


def recorded_run(root: Path, **changes: Any) -> RunFolder:
    """A run that has played Nim by the shipped tiny model, with all its checkpoints."""
    folder = RunFolder(root)
    root.mkdir(parents=True)
    own = {"run_dir": str(root), "dashboard": "off", "keep_checkpoints": 99}
    context = make_context(root, root, **{**NIM, "tracking": own, **changes})
    folder.config.write_text(dump(context.config.updated({"tracking.run_dir": None})))
    asyncio.run(train(context))
    context.tracker.close()
    return folder
