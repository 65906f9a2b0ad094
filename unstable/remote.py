"""Ray: the processes that own a device, and how the loop calls them.

Room classes are plain; `ray.remote` is applied here and in `remote_learner.py` alone. A dead actor
is started again and plays its unfinished games once more; a dead learner ends the run.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError

from unstable.collectors.engine import EngineDiedError
from unstable.collectors.probe import ProbeAnswer, ask_probe
from unstable.config import RunConfig
from unstable.folder import RunFolder
from unstable.models.adapters import read_adapter
from unstable.types import Adapter, GameFailure, GameResult, GameSpec, policy_version

log = logging.getLogger(__name__)
MAX_RESTARTS = 3
"""Deaths of one actor that are survived; more mean that it is not chance."""


class ActorProcess:
    """What runs in an actor's process: one engine, one collector, one thread."""

    def __init__(self, config: RunConfig, folder: RunFolder, index: int) -> None:
        self._config = config
        self._folder = folder
        self._index = index

    async def start(self) -> None:
        """Load the model; raises `ConfigError` where it cannot be served."""
        import torch

        from unstable.collectors.collector import Collector
        from unstable.collectors.engines import make_engine
        from unstable.tracking.logs import setup_logging

        setup_logging(self._folder, f"actor-{self._index}")
        torch.set_num_threads(1)
        log_file = self._folder.log(f"engine-{self._index}")
        with _ends_with_engine():
            self._engine, tokenizer = await make_engine(self._config, log_file)
            self._collector = Collector(self._config, self._engine, tokenizer)
            await self._collector.start()

    async def play(
        self, specs: Sequence[GameSpec], enough: int | None = None
    ) -> AsyncIterator[GameResult | GameFailure]:
        with _ends_with_engine():
            async for result in self._collector.play(specs, enough):
                yield result

    async def publish(self, adapter: Adapter) -> None:
        with _ends_with_engine():
            await self._collector.publish(adapter)

    async def retire(self, name: str) -> None:
        with _ends_with_engine():
            await self._collector.retire(name)

    async def stats(self) -> dict[str, float]:
        return self._collector.stats()

    async def probe(self, adapters: Sequence[Adapter], vocabulary: int) -> list[ProbeAnswer]:
        with _ends_with_engine():
            return await ask_probe(self._engine, adapters, vocabulary)

    async def sleep(self) -> None:
        with _ends_with_engine():
            await self._engine.sleep()

    async def wake(self) -> None:
        with _ends_with_engine():
            await self._engine.wake()

    async def close(self) -> None:
        await self._engine.close()


@contextlib.contextmanager
def _ends_with_engine() -> Iterator[None]:
    """A dead engine takes its process along, which is then started again with a new one."""
    try:
        yield
    except EngineDiedError:
        log.exception("this process ends with its engine")
        os._exit(1)


class RemoteActor:
    """An actor as the loop sees it: survives the death of its process.

    `gpus` are the cards that it sees, as CUDA_VISIBLE_DEVICES names them.
    """

    def __init__(
        self, config: RunConfig, folder: RunFolder, index: int, gpus: Sequence[str] = ()
    ) -> None:
        self._config = config
        self._folder = folder
        self._index = index
        self._published: list[str] = []
        self._restarts = 0
        self._gpus = ",".join(gpus)
        self._reviving = asyncio.Lock()

    async def start(self) -> None:
        """Start the process and load the model."""
        self._process = await self._begin()

    async def _begin(self) -> Any:
        options = process_options(threads=1, gpu=self._gpus, max_concurrency=10_000)
        process: Any = ray.remote(**options)(ActorProcess)
        begun = process.remote(self._config, self._folder, self._index)
        await begun.start.remote()
        return begun

    async def play(
        self, specs: Sequence[GameSpec], enough: int | None = None
    ) -> AsyncIterator[GameResult | GameFailure]:
        """Play games; what a dead process left unfinished is played again, from the same seeds."""
        left = {spec.game_id: spec for spec in specs}
        while True:
            process = self._process
            stream = process.play.remote(list(left.values()), enough)
            try:
                async for reference in stream:
                    result = await reference
                    del left[result.spec.game_id]
                    if enough is not None and isinstance(result, GameResult):
                        enough -= result.num_trained
                    yield result
                return
            except RayActorError as error:
                await self._revive(process, error)
            except (asyncio.CancelledError, GeneratorExit):
                ray.cancel(stream)
                raise

    async def probe(self, adapters: Sequence[Adapter], vocabulary: int) -> list[ProbeAnswer]:
        """The engine's answers to the start-up probe."""
        return await self._process.probe.remote(adapters, vocabulary)

    async def publish(self, adapter: Adapter) -> None:
        """Make a version playable."""
        self._published.append(adapter.name)
        await self._tell("publish", adapter)

    async def retire(self, name: str) -> None:
        """Forget a version that no new game will ask for."""
        self._published.remove(name)
        await self._tell("retire", name)

    async def sleep(self) -> None:
        """Give the memory of a shared GPU back; no game may be in flight."""
        await self._ask("sleep")

    async def wake(self) -> None:
        """Take it again."""
        await self._tell("wake")

    async def _tell(self, method: str, *arguments: object) -> None:
        """Call the process; one that takes a dead one's place knows already, by `_published`."""
        process = self._process
        try:
            await getattr(process, method).remote(*arguments)
        except RayActorError as error:
            await self._revive(process, error)

    async def stats(self) -> dict[str, float]:
        """The engine's counters."""
        return await self._ask("stats")

    async def _ask(self, method: str) -> Any:
        """Call the process, and one that takes a dead one's place as well."""
        while True:
            process = self._process
            try:
                return await getattr(process, method).remote()
            except RayActorError as error:
                await self._revive(process, error)

    async def close(self) -> None:
        """End the engine in order; the process itself ends with the cluster."""
        with contextlib.suppress(RayActorError):  # nothing is left to end then
            await self._process.close.remote()

    async def _revive(self, dead: Any, error: RayActorError) -> None:
        """Start the process again with all its adapters, once however many calls saw it die."""
        async with self._reviving:
            if self._process is not dead:
                return
            self._restarts += 1
            if self._restarts > MAX_RESTARTS:
                raise error
            log.warning("actor %d died and is started again: %s", self._index, error)
            ray.kill(dead)
            process = await self._begin()
            given: set[str] = set()
            while lacking := [name for name in self._published if name not in given]:
                version = policy_version(lacking[0])
                assert version is not None
                adapter = read_adapter(self._folder.checkpoint(version), lacking[0])
                await process.publish.remote(adapter)
                given.add(lacking[0])
            self._process = process


@contextlib.contextmanager
def cluster(processes: int) -> Iterator[None]:
    """Ray on this machine, with room for `processes`, silent, and gone afterwards."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    # Ray prints a dead worker's story, thirty lines of it, without asking; ours is in the log.
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    ray.init(
        num_cpus=processes,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=False,
    )
    try:
        yield
    finally:
        ray.shutdown()


def process_options(threads: int, gpu: str | None = None, **more: object) -> dict[str, Any]:
    """One logical processor for each process; its threads and its import path are set by us.

    `gpu` is the one card that it sees, as CUDA_VISIBLE_DEVICES names it; none is all that we see.
    """
    variables = {
        "OMP_NUM_THREADS": str(threads),
        # Threads that spin while they wait lose far more to a busy machine than sleeping costs.
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if gpu is not None:
        variables |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": gpu}
    return {"num_cpus": 1, "runtime_env": {"env_vars": variables}, **more}
