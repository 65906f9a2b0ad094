"""Ray: the processes that own a device, and how the loop calls them.

Room classes are plain; `ray.remote` is applied here alone. A dead actor is started again and plays
its unfinished games once more; a dead learner ends the run.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayActorError

from unstable.config import RunConfig
from unstable.folder import RunFolder
from unstable.models.adapters import read_adapter
from unstable.types import Adapter, Batch, GameFailure, GameResult, GameSpec, Update, policy_version

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
        from unstable.collectors.embedded import EmbeddedEngine
        from unstable.models.base import load_model, load_tokenizer, stop_token_ids
        from unstable.tracking.logs import setup_logging

        setup_logging(self._folder, f"actor-{self._index}")
        torch.set_num_threads(1)
        config = self._config
        tokenizer = load_tokenizer(config.model)
        model = load_model(config.model)
        assert isinstance(config.actors.games_in_flight, int), "launch resolves auto"
        engine = EmbeddedEngine(
            model,
            stop_token_ids(model, tokenizer),
            max_requests=config.actors.games_in_flight,
            max_length=config.sampling.max_prompt_tokens + config.sampling.max_tokens,
        )
        self._collector = Collector(config, engine, tokenizer)

    async def play(
        self, specs: Sequence[GameSpec], enough: int | None = None
    ) -> AsyncIterator[GameResult | GameFailure]:
        async for result in self._collector.play(specs, enough):
            yield result

    async def publish(self, adapter: Adapter) -> None:
        self._collector.publish(adapter)

    async def retire(self, name: str) -> None:
        self._collector.retire(name)

    async def stats(self) -> dict[str, float]:
        return self._collector.stats()


class LearnerProcess:
    """What runs in the learner's process."""

    def __init__(self, config: RunConfig, folder: RunFolder, threads: int) -> None:
        self._config = config
        self._folder = folder
        self._threads = threads

    def start(self) -> None:
        """Load the model; raises `ConfigError` where LoRA or the starting adapter does not fit."""
        import torch

        from unstable.learners.learner import Learner
        from unstable.tracking.logs import setup_logging

        setup_logging(self._folder, "learner")
        torch.set_num_threads(self._threads)
        config = self._config
        fresh = config.model.init == "fresh"
        self._learner = Learner(
            config.model,
            config.learner,
            updates=config.loop.steps,
            max_tokens=config.sampling.max_tokens,
            seed=config.seed,
            adapter=None if fresh else read_adapter(Path(config.model.init).expanduser(), "start"),
        )

    def update(self, batch: Batch) -> Update:
        return self._learner.update(batch)

    def save(self, version: int, run_state: dict[str, Any]) -> Adapter:
        return self._learner.save(self._folder.checkpoint(version), run_state)


class RemoteActor:
    """An actor as the loop sees it: survives the death of its process."""

    def __init__(self, config: RunConfig, folder: RunFolder, index: int) -> None:
        self._config = config
        self._folder = folder
        self._index = index
        self._published: list[str] = []
        self._restarts = 0
        self._reviving = asyncio.Lock()

    async def start(self) -> None:
        """Start the process and load the model."""
        self._process = await self._begin()

    async def _begin(self) -> Any:
        process: Any = ray.remote(**_options(threads=1, max_concurrency=10_000))(ActorProcess)
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

    async def publish(self, adapter: Adapter) -> None:
        """Make a version playable."""
        self._published.append(adapter.name)
        await self._tell("publish", adapter)

    async def retire(self, name: str) -> None:
        """Forget a version that no new game will ask for."""
        self._published.remove(name)
        await self._tell("retire", name)

    async def _tell(self, method: str, argument: object) -> None:
        """Call the process; one that takes a dead one's place knows already, by `_published`."""
        process = self._process
        try:
            await getattr(process, method).remote(argument)
        except RayActorError as error:
            await self._revive(process, error)

    async def stats(self) -> dict[str, float]:
        """The engine's counters."""
        while True:
            process = self._process
            try:
                return await process.stats.remote()
            except RayActorError as error:
                await self._revive(process, error)

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


class RemoteLearner:
    """The learner as the loop sees it; its death is an error of the call that met it."""

    def __init__(self, config: RunConfig, folder: RunFolder, threads: int) -> None:
        process: Any = ray.remote(**_options(threads))(LearnerProcess)
        self._process = process.remote(config, folder, threads)

    async def start(self) -> None:
        """Load the model."""
        await self._process.start.remote()

    async def update(self, batch: Batch) -> Update:
        """One update; raises what the learner raised."""
        return await self._process.update.remote(batch)

    async def save(self, version: int, run_state: dict[str, Any]) -> Adapter:
        """Write the checkpoint of `version` and return its adapter."""
        return await self._process.save.remote(version, run_state)


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


def _options(threads: int, **more: object) -> dict[str, Any]:
    """One logical processor for each process; its threads and its import path are set by us."""
    variables = {
        "OMP_NUM_THREADS": str(threads),
        # Threads that spin while they wait lose far more to a busy machine than sleeping costs.
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])),
        "TOKENIZERS_PARALLELISM": "false",
    }
    return {"num_cpus": 1, "runtime_env": {"env_vars": variables}, **more}
