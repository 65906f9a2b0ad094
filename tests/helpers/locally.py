"""Run commands with their actors and learner in this process, without Ray.

A run's processes take about 30 seconds of CPU time to start, so only tests of processes start them.
`python -m tests.helpers.locally` takes the arguments of `unstable`.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from unstable.config import RunConfig
from unstable.planning.machine import Placement
from unstable.planning.plan import Plan
from unstable.records.folder import RunFolder
from unstable.runtime.judge import judging
from unstable.runtime.local import LocalActor, LocalLearner
from unstable.runtime.processes import Started, _probe
from unstable.types import PackedBatch, Update
from unstable.types.processes import Waits

ROOT = Path(__file__).parent.parent.parent
PROGRAM = f"""
import runpy, sys
sys.path.insert(0, {str(ROOT)!r})
runpy.run_module("tests.helpers.locally", run_name="__main__")
"""


class OwnLearner(LocalLearner):
    """Learner that computes with a fixed number of threads, so that results are deterministic."""

    def __init__(self, config: RunConfig, folder: RunFolder, threads: int) -> None:
        super().__init__(config, folder)
        self._threads = threads

    async def update(self, batch: PackedBatch) -> Update:
        with threads(self._threads):
            return await super().update(batch)


@contextlib.contextmanager
def threads(number: int) -> Iterator[None]:
    """Set torch's number of threads for the duration of the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.asynccontextmanager
async def acting(
    config: RunConfig, placements: Sequence[Placement], folder: RunFolder, at: Callable[[str], None]
) -> AsyncIterator[Sequence[Any]]:
    """Actors of this process, in place of `runtime.processes.acting`."""
    at("starting: loading the model")
    config = config.with_ledgers(folder.endpoint)
    async with contextlib.AsyncExitStack() as stack:
        actors = []
        for index in range(len(placements)):
            own = config.of_actor(index)
            log = folder.log(f"engine-{index}")
            actors.append(await LocalActor.start(own, folder, log, judging(own, folder)))
            stack.push_async_callback(actors[-1].close)
        yield actors


@contextlib.asynccontextmanager
async def processes(
    config: RunConfig,
    plan: Plan,
    folder: RunFolder,
    at: Callable[[str], None],
    waits: Waits | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[Started]:
    """Actors and a learner of this process, in place of `runtime.processes.processes`."""
    async with acting(config, plan.actors, folder, at) as actors:
        learner: Any = OwnLearner(config, folder, plan.learner_threads)
        for doubt in await _probe(config, [*actors], learner):
            say(f"note: {doubt}")
        yield Started([*actors], learner, asyncio.Queue())


@contextlib.contextmanager
def locally() -> Iterator[None]:
    """Keep commands of this process and of its children from starting Ray and processes of actors.

    Engines compute with one thread, as they do in the processes of actors.
    """
    with (
        threads(1),
        patch("unstable.runtime.processes.processes", processes),
        patch("unstable.runtime.processes.acting", acting),
        patch("unstable.processes.child._PROGRAM", PROGRAM),
    ):
        yield


if __name__ == "__main__":
    from unstable.cli import main

    with locally():
        main()
