"""The learner's ranks, each a process of its own, and how the loop calls them as one."""

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from unstable.config import RunConfig, RunFailedError
from unstable.loop.protocols import HeldAdapter
from unstable.planning.machine import LOOPBACK, Placement
from unstable.records.folder import RunFolder
from unstable.runtime.cluster import MEMORY, Process, again, in_time
from unstable.runtime.local import LocalLearner
from unstable.tracking.status import Waits
from unstable.types import Adapter
from unstable.types.processes import ProcessId

FILES = "files"
"""Calls that write or hand out what is held, beside those that compute."""
GRACE_S = 5.0
"""How long after a rank's error another rank's death, which may be its cause, is waited for."""


class LearnerProcess:
    """What a rank's process runs: a `LocalLearner`."""

    def __init__(self, config: RunConfig, folder: RunFolder, threads: int, index: int) -> None:
        self._config = config
        self._folder = folder
        self._threads = threads
        self._index = index
        self._store: Any = None

    def listen(self) -> tuple[str, int]:
        """Open the place where the ranks meet: its host and port, held by this process."""
        from unstable.learners.ranks import listen

        self._store = listen(LOOPBACK)
        return LOOPBACK, self._store.port

    def start(self, meeting: tuple[str, int] | None) -> ProcessId:
        """Meet the other ranks, if any, and load the model; returns where this is.

        Raises `ConfigError` as `LocalLearner` does.
        """
        import torch

        from unstable.learners.ranks import join
        from unstable.records.logs import setup_logging

        setup_logging(self._folder, f"learner-{self._index}" if self._index else "learner")
        torch.set_num_threads(self._threads)
        ranks = None
        if meeting is not None:
            store = self._store or torch.distributed.TCPStore(*meeting)
            assert isinstance(self._config.learner.num, int), "planning resolves auto"
            ranks = join(self._index, self._config.learner.num, store)
        self._learner = LocalLearner(self._config, self._folder, ranks)
        # Python's garbage collector then leaves out loaded libraries and the model: a pass over
        # them takes a fifth of a tiny model's update.
        gc.collect()
        gc.freeze()
        return ProcessId.own()

    def adapter(self, version: int) -> tuple[None, Adapter]:
        """`LocalLearner.adapter`: that it is there and, apart, the adapter."""
        return None, self.call("adapter", version)

    def call(self, method: str, *arguments: object) -> Any:
        """A method of `LocalLearner`."""
        return asyncio.run(getattr(self._learner, method)(*arguments))


class RemoteLearner:
    """The learner as the loop sees it, however many ranks it has: `LocalLearner`s elsewhere.

    What is not defined here is a method of `LocalLearner`, called of all ranks at once. The death
    or error of a rank is an error of the call that met it, and the end of all ranks: the others
    would wait for it. There is a rank at each of `placements`; `threads` are shared out.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        placements: Sequence[Placement],
        threads: int,
        waits: Waits | None = None,
    ) -> None:
        self._config, self._folder = config, folder
        self._waits = waits or Waits()
        own = max(1, threads // len(placements))
        self._ranks = [
            Process(
                LearnerProcess,
                (config, folder, own, index),
                placement,
                threads=own,
                variables=allocator(placement),
                concurrency_groups={FILES: 1},
            )
            for index, placement in enumerate(placements)
        ]

    async def start(self) -> None:
        """Load the model."""
        alone = len(self._ranks) == 1
        async with in_time(self._config, "learner", self._folder):
            place = None if alone else await self._ranks[0].actor.listen.remote()
            started = [rank.start(place) for rank in self._ranks]
            pids = await self._answers("start", started)
        names = ("learner", *(f"learner-{index}" for index in range(1, len(pids))))
        self._waits.processes.update(zip(names, pids, strict=True))

    async def hold(self, version: int) -> None:
        """As `LocalLearner.hold`; all ranks would hold the same."""
        await self._answers("hold", [self._ranks[0].call("hold", version)])

    async def adapter(self, version: int) -> HeldAdapter:
        """As `LocalLearner.adapter`, while an update may go on, but for Ray's reference to it.

        So it goes to each node that has an actor, once, and not to this process.
        """
        ask = self._ranks[0].actor.adapter.options(num_returns=2, concurrency_group=FILES)
        there, adapter = ask.remote(version)
        await self._answers("adapter", [there])
        return adapter

    async def save(self, version: int) -> None:
        """Write the checkpoint of a version that is held, while an update may go on.

        Raises `RunFailedError` where it cannot be written.
        """
        try:
            await self._answers("save", [self._ranks[0].call("save", version, group=FILES)])
        except OSError as error:
            reason = getattr(error, "cause", error)
            last = f", after {whole[-1]}" if (whole := self._folder.versions()) else ""
            raise RunFailedError(
                f"checkpoint {version} cannot be written{last} "
                f"({reason.strerror or reason}); make room for it; {again(self._folder)}"
            ) from error

    def __getattr__(self, method: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        if method.startswith("_") or not hasattr(LocalLearner, method):
            raise AttributeError(method)
        return partial(self._call, method)

    async def _call(self, method: str, *arguments: object) -> Any:
        """Call a method of all ranks at once; rank 0's answer, which is that of all."""
        shared = [ray.put(argument) for argument in arguments]
        answers = await self._answers(method, [r.call(method, *shared) for r in self._ranks])
        return answers[0]

    async def _answers(self, method: str, asked: Sequence[Awaitable[Any]]) -> list[Any]:
        """Of some ranks; an error, a death or no answer in time ends all of them."""
        calls = [asyncio.ensure_future(each) for each in asked]
        loop = self._config.loop
        seconds = loop.start_timeout if method == "start" else loop.stall_timeout
        try:
            with self._waits.on(f"learner: {method}"):
                async with asyncio.timeout(seconds):
                    return await asyncio.gather(*calls)
        except TimeoutError as error:
            self._end()
            raise RunFailedError(
                f"the learner has not answered '{method}' in loop.stall_timeout = {seconds:g} s; "
                f"raise it where an update may take longer; {again(self._folder)}"
            ) from error
        except RayError as error:
            # A death also breaks the survivors' connections, and is sometimes reported after that.
            await asyncio.wait(calls, timeout=GRACE_S)
            known = [call.exception() for call in calls if call.done()]
            if method != "save" or isinstance(error, RayActorError):
                self._end()
            await asyncio.gather(*calls, return_exceptions=True)
            death = next((e for e in known if isinstance(e, RayActorError)), None)
            if death is None:
                raise error from None
            raise RunFailedError(
                f"the learner's process has died in '{method}'; if its log does not say why, "
                f"{MEMORY}: lower learner.micro_batch_size or actors.num; {again(self._folder)}"
            ) from death

    def _end(self) -> None:
        for rank in self._ranks:
            rank.kill()


def allocator(placement: Placement) -> dict[str, str]:
    """How torch keeps a card's memory, unless the environment says it: in segments that grow.

    Micro-batches are of any length, and would leave holes that the next ones do not fit. An engine
    has none of it: vLLM could not put its memory to sleep.
    """
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    given = any(name in os.environ for name in names)
    return {} if given or not placement.gpus else {names[0]: "expandable_segments:True"}
