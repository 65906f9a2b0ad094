"""Ray: the learner's ranks, each a process of its own, and how the loop calls them as one."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from unstable.config import RunConfig, RunFailedError
from unstable.models.adapters import read_adapter
from unstable.records.folder import RunFolder
from unstable.runtime.cluster import LOOPBACK, MEMORY, again, in_time, process_options
from unstable.tracking.status import Waits
from unstable.types import Adapter, Batch, TokenSample, Update

GRACE_S = 5.0
"""How long after a rank's error another rank's death, which may be its cause, is waited for."""


class LearnerProcess:
    """What runs in a rank's process; see `RemoteLearner`."""

    def __init__(self, config: RunConfig, folder: RunFolder, threads: int, index: int = 0) -> None:
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

    def start(self, meeting: tuple[str, int] | None) -> int:
        """Meet the other ranks, if any, and load the model; returns the process's id.

        Raises `ConfigError` where LoRA or the starting adapter does not fit.
        """
        import torch

        from unstable.learners.learner import Learner
        from unstable.learners.ranks import ALONE, join
        from unstable.records.logs import setup_logging

        setup_logging(self._folder, f"learner-{self._index}" if self._index else "learner")
        torch.set_num_threads(self._threads)
        config = self._config
        fresh = config.model.init == "fresh"
        ranks = ALONE
        if meeting is not None:
            store = self._store or torch.distributed.TCPStore(*meeting)
            ranks = join(self._index, config.learner.num, store)
        self._learner = Learner(
            config.model,
            config.learner,
            updates=config.loop.steps,
            max_tokens=config.sampling.max_tokens,
            seed=config.seed,
            adapter=None if fresh else read_adapter(Path(config.model.init).expanduser(), "start"),
            ranks=ranks,
        )
        if config.learner.state is not None:
            self._learner.restore(Path(config.learner.state).expanduser())
        return os.getpid()

    def update(self, batch: Batch) -> Update:
        with self._leaving_room():
            return self._learner.update(batch)

    def imitate(self, samples: Sequence[TokenSample]) -> Update:
        with self._leaving_room():
            return self._learner.imitate(samples)

    def logprobs(self, samples: Sequence[TokenSample]) -> list[list[float]]:
        with self._leaving_room():
            return self._learner.logprobs(samples)

    def logprobs_under(self, adapter: Adapter, samples: Sequence[TokenSample]) -> list[list[float]]:
        with self._leaving_room():
            return self._learner.logprobs_under(adapter, samples)

    def load(self, version: int) -> None:
        with self._leaving_room():
            self._learner.load(self._folder.checkpoint(version))

    def save(self, version: int) -> None:
        with self._leaving_room():
            self._learner.save(self._folder.checkpoint(version))

    def scale_rate(self, factor: float) -> None:
        self._learner.scale_rate(factor)

    def restore(self, version: int) -> None:
        with self._leaving_room():
            self._learner.restore(self._folder.checkpoint(version))

    @contextlib.contextmanager
    def _leaving_room(self) -> Iterator[None]:
        """An engine that shares the GPU by turns may wake after any call, into what is free."""
        import torch

        yield
        if self._config.actors.share_gpu == "sleep":
            torch.cuda.empty_cache()


class RemoteLearner:
    """The learner as the loop sees it, however many ranks it has.

    The death or error of a rank is an error of the call that met it, and the end of all ranks: the
    others would wait for it. `gpus` gives each rank the card of its own, as CUDA_VISIBLE_DEVICES
    names it; `threads` are shared out.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        threads: int,
        gpus: Sequence[str] | None = None,
        waits: Waits | None = None,
    ) -> None:
        self._config, self._folder = config, folder
        self._waits = waits or Waits()
        count = config.learner.num
        assert gpus is None or len(gpus) == count
        own = max(1, threads // count)
        self._names = ["learner", *(f"learner-{index}" for index in range(1, count))]
        self._ranks = []
        for index in range(count):
            options = process_options(own, gpu=None if gpus is None else gpus[index])
            process: Any = ray.remote(**options)(LearnerProcess)
            self._ranks.append(process.remote(config, folder, own, index))

    async def start(self) -> None:
        """Load the model."""
        alone = len(self._ranks) == 1
        async with in_time(self._config, "learner", self._folder):
            place = None if alone else await self._ranks[0].listen.remote()
            pids = await self._on_all("start", place)
        self._waits.processes.update(zip(self._names, pids, strict=True))

    async def update(self, batch: Batch) -> Update:
        """One update; raises what a rank raised."""
        updates = await self._on_all("update", ray.put(batch))
        return updates[0]

    async def imitate(self, samples: Sequence[TokenSample]) -> Update:
        """One supervised step; raises what a rank raised."""
        updates = await self._on_all("imitate", ray.put(samples))
        return updates[0]

    async def logprobs(self, samples: Sequence[TokenSample]) -> list[list[float]]:
        """Of the samples' tokens, in nats, under the policy as it is."""
        scored = await self._on_all("logprobs", ray.put(samples))
        return scored[0]

    async def logprobs_under(
        self, adapter: Adapter, samples: Sequence[TokenSample]
    ) -> list[list[float]]:
        """The same with another adapter in the policy's place."""
        scored = await self._on_all("logprobs_under", adapter, ray.put(samples))
        return scored[0]

    async def load(self, version: int) -> None:
        """Become what `save` wrote as `version`."""
        await self._on_all("load", version)

    async def save(self, version: int) -> None:
        """Write the checkpoint of `version`; all ranks would write the same.

        Raises `RunFailedError` where it cannot be written.
        """
        try:
            await self._on([self._ranks[0]], "save", version)
        except OSError as error:
            reason = getattr(error, "cause", error)
            last = f", after {whole[-1]}" if (whole := self._folder.versions()) else ""
            raise RunFailedError(
                f"checkpoint {version} cannot be written{last} "
                f"({reason.strerror or reason}); make room for it; {again(self._folder)}"
            ) from error

    async def scale_rate(self, factor: float) -> None:
        """Multiply the learning rate of all updates to come."""
        await self._on_all("scale_rate", factor)

    async def restore(self, version: int) -> None:
        """Take the weights, optimizer and algorithm of `version`; the version's number stays."""
        await self._on_all("restore", version)

    async def _on_all(self, method: str, *arguments: object) -> list[Any]:
        """Call a method of all ranks at once; the answers in their order."""
        return await self._on(self._ranks, method, *arguments)

    async def _on(self, ranks: Sequence[Any], method: str, *arguments: object) -> list[Any]:
        """Call a method of some ranks; an error, a death or no answer in time ends all of them."""
        calls = [asyncio.ensure_future(getattr(rank, method).remote(*arguments)) for rank in ranks]
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
        """End all ranks at once, be they stopped: Ray would ask them to end themselves."""
        for rank in self._ranks:
            ray.kill(rank)
        for name in self._names:
            with contextlib.suppress(KeyError, ProcessLookupError):  # not started, gone
                os.kill(self._waits.processes.pop(name), signal.SIGKILL)
