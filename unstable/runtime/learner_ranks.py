"""Ray: the learner's ranks, each a process of its own, and how the loop calls them as one."""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from unstable.config import RunConfig
from unstable.models.adapters import read_adapter
from unstable.records.folder import RunFolder
from unstable.runtime.cluster import in_time, process_options
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

        host = ray.util.get_node_ip_address()
        self._store = listen(host)
        return host, self._store.port

    def start(self, meeting: tuple[str, int] | None) -> None:
        """Meet the other ranks, if any, and load the model.

        Raises `ConfigError` where LoRA or the starting adapter does not fit.
        """
        import torch

        from unstable.learners.learner import Learner
        from unstable.learners.ranks import ALONE, join
        from unstable.runtime.logs import setup_logging

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

    def load(self, version: int) -> dict[str, Any]:
        with self._leaving_room():
            return self._learner.load(self._folder.checkpoint(version))

    def save(self, version: int, run_state: dict[str, Any]) -> None:
        with self._leaving_room():
            self._learner.save(self._folder.checkpoint(version), run_state)

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
    ) -> None:
        self._config, self._folder = config, folder
        count = config.learner.num
        assert gpus is None or len(gpus) == count
        own = max(1, threads // count)
        self._ranks = []
        for index in range(count):
            options = process_options(own, gpu=None if gpus is None else gpus[index])
            process: Any = ray.remote(**options)(LearnerProcess)
            self._ranks.append(process.remote(config, folder, own, index))

    async def start(self) -> None:
        """Load the model."""
        alone = len(self._ranks) == 1
        async with in_time(self._config, "learner", self._folder):
            await self._on_all("start", None if alone else await self._ranks[0].listen.remote())

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

    async def load(self, version: int) -> dict[str, Any]:
        """Become what `save` wrote as `version`; returns the run state given to it."""
        states = await self._on_all("load", version)
        return states[0]

    async def save(self, version: int, run_state: dict[str, Any]) -> None:
        """Write the checkpoint of `version`; all ranks would write the same."""
        await self._ranks[0].save.remote(version, run_state)

    async def scale_rate(self, factor: float) -> None:
        """Multiply the learning rate of all updates to come."""
        await self._on_all("scale_rate", factor)

    async def restore(self, version: int) -> None:
        """Take the weights, optimizer and algorithm of `version`; the version's number stays."""
        await self._on_all("restore", version)

    async def _on_all(self, method: str, *arguments: object) -> list[Any]:
        """Call a method of all ranks at once; the answers in their order."""
        calls = [
            asyncio.ensure_future(getattr(rank, method).remote(*arguments)) for rank in self._ranks
        ]
        try:
            return await asyncio.gather(*calls)
        except RayError as error:
            # A death also breaks the survivors' connections, and is sometimes reported after that.
            await asyncio.wait(calls, timeout=GRACE_S)
            known = [call.exception() for call in calls if call.done()]
            for rank in self._ranks:
                ray.kill(rank)
            await asyncio.gather(*calls, return_exceptions=True)
            raise next((e for e in known if isinstance(e, RayActorError)), error) from None
