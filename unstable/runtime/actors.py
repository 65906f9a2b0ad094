"""Actors: processes with an engine that play, and how the loop calls them.

Classes are plain; `ray.remote` is applied here and in `learner_ranks.py` alone. A dead actor is
started again, gets its adapters back and plays its unfinished games once more.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayActorError

from unstable.config import RunConfig, RunFailedError
from unstable.engines.base import EngineDiedError
from unstable.engines.probe import ProbeAnswer, ask_probe
from unstable.models.adapters import read_adapter
from unstable.records.folder import RunFolder
from unstable.runtime.cluster import MEMORY, again, in_time, process_options
from unstable.runtime.heartbeat import watch
from unstable.tracking.status import Waits
from unstable.types import (
    ActorState,
    Adapter,
    Exploitability,
    GameFailure,
    GameResult,
    GameSpec,
    PlayerId,
)

if TYPE_CHECKING:
    from unstable.solving.exploiter import Exploiter

log = logging.getLogger(__name__)
MAX_RESTARTS = 3
"""Deaths of one actor that are survived; more mean that it is not chance."""
ANSWER_S = 0.5
"""Seconds that an actor has to answer before it is asked to close."""
CLOSE_S = 20.0
"""Seconds that its engine has to end."""


class ActorProcess:
    """What runs in an actor's process: one engine, one collector, one thread; see `RemoteActor`."""

    def __init__(self, config: RunConfig, folder: RunFolder, index: int) -> None:
        self._config = config
        self._folder = folder
        self._index = index
        self._exploiters: dict[str, Exploiter] = {}

    async def start(self) -> int:
        """Load the model; returns the process's id.

        Raises `ConfigError` where it cannot be served.
        """
        import torch

        from unstable.collectors.collector import Collector
        from unstable.collectors.watch import Watch
        from unstable.engines.make import make_engine
        from unstable.records.logs import setup_logging

        setup_logging(self._folder, f"actor-{self._index}")
        torch.set_num_threads(1)
        log_file = self._folder.log(f"engine-{self._index}")
        with _ends_with_engine():
            self._engine, tokenizer = await make_engine(self._config, log_file)
            config = self._config.with_ledgers(self._folder.endpoint)
            self._collector = Collector(config, self._engine, tokenizer)
            await self._collector.start()
        for env in self._folder.blocking_games:
            self._collector.play_isolated(env)
        games = self._config.game_by_key
        Watch(lambda env: games[env].turn_timeout, self._blocked, lambda _: os._exit(1))
        collect_rarely()
        return os.getpid()

    def _blocked(self, env: str) -> None:
        self._collector.play_isolated(env)
        self._folder.add_blocking_game(env)

    async def play(
        self, specs: Sequence[GameSpec], enough: int | None = None
    ) -> AsyncIterator[list[GameResult | GameFailure]]:
        with _ends_with_engine():
            async for results in self._collector.play_together(specs, enough):
                yield results

    async def state(self) -> ActorState:
        return self._collector.state()

    async def restore(self, state: ActorState) -> None:
        self._collector.restore(state)

    async def publish(self, version: PlayerId, adapter: Adapter) -> None:
        with _ends_with_engine():
            await self._collector.publish(version, adapter)

    async def retire(self, version: PlayerId) -> None:
        with _ends_with_engine():
            await self._collector.retire(version)

    async def stats(self) -> dict[str, float]:
        return self._collector.stats()

    async def probe(self, adapters: Sequence[Adapter], vocabulary: int) -> list[ProbeAnswer]:
        with _ends_with_engine():
            return await ask_probe(self._engine, adapters, vocabulary)

    async def decide(
        self, game: str, version: PlayerId, part: int, parts: int
    ) -> dict[int, list[float]]:
        with _ends_with_engine():
            return await self._exploiter(game).decide(version.name, part, parts)

    async def assess(
        self, game: str, version: int, shares: Mapping[int, list[float]], began: float
    ) -> Exploitability:
        return self._exploiter(game).assess(version, shares, began)

    def _exploiter(self, game: str) -> "Exploiter":
        from unstable.solving.exploiter import Exploiter

        if game not in self._exploiters:
            config, most = self._config.game_by_key[game], self._config.sampling.max_tokens
            prompts = self._collector.prompts[game]
            samples = self._config.eval.exploitability.samples
            self._exploiters[game] = Exploiter(config, prompts, self._engine, most, samples)
        return self._exploiters[game]

    async def sleep(self) -> None:
        with _ends_with_engine():
            await self._engine.sleep()

    async def wake(self) -> None:
        with _ends_with_engine():
            await self._engine.wake()

    async def close(self) -> None:
        self._collector.close()
        await self._engine.close()


def collect_rarely() -> None:
    """Let Python's garbage collector leave out all that is there by now, and pass less often.

    A third of the time of small games went into passes over loaded libraries, which never go.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # objects made, and passes over the younger ones


@contextlib.contextmanager
def _ends_with_engine() -> Iterator[None]:
    """A dead engine takes its process along, which is then started again with a new one."""
    try:
        yield
    except EngineDiedError:
        log.exception("this process ends with its engine")
        os._exit(1)


class Adapters:
    """The versions' adapters, out of their checkpoints: the one way to every actor's process."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._version: PlayerId | None = None
        self._reference: Any = None

    def reference(self, version: PlayerId) -> Any:
        """Ray's reference to an adapter; the last one is kept, as all actors ask for it at once."""
        if self._version != version:
            assert version.version is not None
            place = self._folder.checkpoint(version.version, version.label)
            self._reference = ray.put(read_adapter(place, version.name))
            self._version = version
        return self._reference


class RemoteActor:
    """An actor as the loop sees it: survives the death of its process.

    `gpus` are the cards that it sees, as CUDA_VISIBLE_DEVICES names them.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        index: int,
        gpus: Sequence[str] = (),
        adapters: Adapters | None = None,
        waits: Waits | None = None,
    ) -> None:
        self._config = config
        self._folder = folder
        self._index = index
        self._adapters = adapters or Adapters(folder)
        self._published: list[PlayerId] = []
        self._restarts = 0
        self._gpus = ",".join(gpus)
        self._reviving = asyncio.Lock()
        self._waits = waits or Waits()
        self._calls = 0  # that are waited for
        self._watch: asyncio.Task[None] | None = None
        self.name = f"actor-{index}"

    async def start(self) -> None:
        """Start the process and load the model; from then on it is watched."""
        with self._waits.on(f"{self.name}: start"):
            self._process = await self._begin()
        slowest = max(game.turn_timeout for game in self._config.games)
        limit = max(self._config.loop.stall_timeout, 2 * slowest)
        self._watch = asyncio.create_task(
            watch(
                self.name,
                self._numbers,
                lambda: self._calls > 0,
                self._kill,
                limit,
            )
        )

    async def _numbers(self) -> dict[str, float] | None:
        """The process's counters, None while it is dead."""
        try:
            return await self._process.stats.remote()
        except RayActorError:
            return None

    def _kill(self) -> None:
        """End the process at once, be it stopped: Ray would ask it to end itself."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._waits.processes[self.name], signal.SIGKILL)

    @contextlib.contextmanager
    def _waiting(self, what: str) -> Iterator[None]:
        """Meanwhile something is waited for."""
        self._calls += 1
        try:
            with self._waits.on(f"{self.name}: {what}"):
                yield
        finally:
            self._calls -= 1

    async def _begin(self) -> Any:
        options = process_options(threads=1, gpu=self._gpus, max_concurrency=10_000)
        process: Any = ray.remote(**options)(ActorProcess)
        begun = process.remote(self._config, self._folder, self._index)
        async with in_time(self._config, self.name, self._folder):
            self._waits.processes[self.name] = await begun.start.remote()
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
                with self._waiting(f"{len(left)} {specs[0].purpose} games"):
                    async for reference in stream:
                        for result in await reference:
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
        with self._waiting("probe"):
            return await self._process.probe.remote(adapters, vocabulary)

    async def state(self) -> ActorState:
        """What play so far has to do with play to come; a process that dies takes its own along."""
        return await self._ask("state")

    async def restore(self, state: ActorState) -> None:
        """Continue from what `state` returned."""
        await self._send("restore", state)

    async def publish(self, version: PlayerId) -> None:
        """Make a version playable, whose checkpoint is there."""
        self._published.append(version)
        await self._send("publish", version, self._adapters.reference(version))

    async def retire(self, version: PlayerId) -> None:
        """Forget a version that no new game will ask for."""
        self._published.remove(version)
        await self._send("retire", version)

    async def decide(
        self, game: str, version: PlayerId, part: int, parts: int
    ) -> dict[int, list[float]]:
        """A version at every `parts`-th decision of a game, as `collectors.exploit` says."""
        return await self._ask("decide", game, version, part, parts)

    async def assess(
        self, game: str, version: int, shares: Mapping[int, list[float]], began: float
    ) -> Exploitability:
        """What a version at all decisions of a game is worth."""
        return await self._ask("assess", game, version, shares, began)

    async def sleep(self) -> None:
        """Give the memory of a shared GPU back; no game may be in flight."""
        await self._ask("sleep")

    async def wake(self) -> None:
        """Take it again."""
        await self._send("wake")

    async def _send(self, method: str, *arguments: object) -> None:
        """Call the process; one that takes a dead one's place knows already, by `_published`."""
        process = self._process
        try:
            with self._waiting(method):
                await getattr(process, method).remote(*arguments)
        except RayActorError as error:
            await self._revive(process, error)

    async def stats(self) -> dict[str, float]:
        """The engine's counters."""
        return await self._ask("stats")

    async def _ask(self, method: str, *arguments: object) -> Any:
        """Call the process, and one that takes a dead one's place as well."""
        while True:
            process = self._process
            try:
                with self._waiting(method):
                    return await getattr(process, method).remote(*arguments)
            except RayActorError as error:
                await self._revive(process, error)

    async def close(self) -> None:
        """End the engine in order; the process itself ends with the cluster.

        One that does not answer, such as one that a game blocks, is left to that end.
        """
        if self._watch is not None:
            self._watch.cancel()
        with contextlib.suppress(RayActorError, TimeoutError):  # nothing is left to end then
            async with asyncio.timeout(ANSWER_S):
                await self._process.stats.remote()
            async with asyncio.timeout(CLOSE_S):
                await self._process.close.remote()

    async def _revive(self, dead: Any, error: RayActorError) -> None:
        """Start the process again with all its adapters, once however many calls saw it die."""
        async with self._reviving:
            if self._process is not dead:
                return
            self._restarts += 1
            if self._restarts > MAX_RESTARTS:
                raise RunFailedError(
                    f"{self.name} has died {self._restarts} times; if its log does not say why, "
                    f"{MEMORY}: lower actors.num or actors.games_in_flight; {again(self._folder)}"
                ) from error
            log.warning("%s died and is started again: %s", self.name, error)
            ray.kill(dead)
            with self._waits.on(f"{self.name}: start"):
                process = await self._begin()
            given: set[PlayerId] = set()
            while lacking := [version for version in self._published if version not in given]:
                # Bounded as all calls are: the process is watched only once it is the actor's.
                async with in_time(self._config, self.name, self._folder):
                    await process.publish.remote(lacking[0], self._adapters.reference(lacking[0]))
                given.add(lacking[0])
            self._process = process
