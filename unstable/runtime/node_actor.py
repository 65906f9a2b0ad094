"""Actor on a node of a cluster whose nodes join and leave.

An actor whose node is gone has no process until another place has room. Meanwhile other actors play
the games that it has begun. If each actor plays a share of a round, one of them also plays the lost
actor's share, from the lost actor's state, so that the games are identical, bit for bit.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, Protocol

import ray
from ray.exceptions import ObjectLostError, RayError

from unstable.config import RunConfig, RunFailedError
from unstable.loop.protocols import HeldAdapter
from unstable.models.adapters import read_adapter
from unstable.records.folder import RunFolder
from unstable.runtime.actors import RemoteActor
from unstable.runtime.cluster import Process
from unstable.runtime.files import Files
from unstable.runtime.inside import ActorProcess
from unstable.runtime.placement import NodePlace
from unstable.types import ActorState, PlayerId
from unstable.types.processes import Waits

log = logging.getLogger(__name__)
LOOK_S = 0.5
LEFT_TO_OTHERS = {"decide", "assess", "luck"}
"""Methods that any other actor can answer."""


class Mates(Protocol):
    """The other actors of a run, as one actor sees them; implemented by `crew.Crew`."""

    waits: Waits
    say: Callable[[str], None]
    files: Files

    async def has(self, place: NodePlace | None) -> bool:
        """Return whether a place still belongs to the run and its node is alive."""

    async def host(self) -> "NodeActor":
        """Return an actor to play for a lost one."""

    def withdraw(self, actor: "NodeActor") -> None:
        """Record that an actor has lost its place."""


class NodeActor(RemoteActor):
    """An actor that also survives the loss of its node."""

    def __init__(
        self, config: RunConfig, folder: RunFolder, index: int, place: NodePlace, crew: Mates
    ) -> None:
        super().__init__(config, folder, index, place.placement, crew.waits, crew.say)
        self._crew = crew
        self.place: NodePlace | None = place
        self._there = asyncio.Event()
        self._turn = asyncio.Lock()  # one actor's games at a time, if games must repeat exactly
        self._guests = 0
        self._stats: dict[str, float] = {}  # newest answer

    async def start(self) -> None:
        await super().start()
        self._state = await self._process.call("state")

    async def present(self) -> None:
        await self._there.wait()

    @property
    def is_lost(self) -> bool:  # type: ignore[override]
        """True if the actor has no process and others play its games."""
        return not self._there.is_set()

    @property
    def load(self) -> int:
        """Number of calls in progress plus the number of actors that this one plays for."""
        return self._calls + self._guests

    async def settle(self, place: NodePlace) -> None:
        """Restart a lost actor at a place; the actor stays lost if it does not start there."""
        async with self._reviving:
            self.place, self._placement = place, place.placement
            try:
                self._begin_with(await self._successor())
            except (RayError, RunFailedError, TimeoutError) as error:
                log.warning("%s failed to start on %s: %s", self.name, place.node.name, error)
                self._crew.withdraw(self)
                return
        self._say(f"{self.name} runs on {place.node.name}")

    def _begin_with(self, process: Process) -> None:
        super()._begin_with(process)
        self._there.set()

    async def _begin(self) -> Process:
        """Start a process at the actor's place, after sending the files that it needs."""
        assert self.place is not None
        await self._crew.files.give(self.place.node, "play")
        return await super()._begin()

    def _process_of(self) -> Process:
        assert self.place is not None
        files, node = self._crew.files, self.place.node
        arguments = (files.config_at(node), files.folder_at(node), self._index)
        return Process(ActorProcess, arguments, self.place, threads=1, max_concurrency=10_000)

    async def _player(self) -> RemoteActor:
        return await self._crew.host() if self.is_lost else self

    @contextlib.asynccontextmanager
    async def _lent(self, other: RemoteActor) -> AsyncIterator[None]:
        """Play one actor's games at a time, from its state, if games must repeat exactly."""
        self._guests += other is not self
        try:
            if not self._repeats:
                yield
                return
            async with self._turn:
                process = self._process
                if other is not self:
                    await process.call("restore", other._state)
                yield
                if other is not self:
                    await process.call("restore", self._state)
        finally:
            self._guests -= other is not self

    def _learn(self, state: ActorState, player: RemoteActor) -> None:
        if player is self or self._repeats:
            self._state = state

    async def _call(self, method: str, *arguments: object) -> Any:
        answer = await super()._call(method, *arguments)
        if method == "stats":
            self._stats = answer
        return answer

    async def _without_process(self, method: str, *arguments: object) -> Any:
        if method in LEFT_TO_OTHERS:
            return await (await self._crew.host())._call(method, *arguments)
        answers = {"state": self._state, "stats": self._stats | {"games_in_flight": 0}}
        return answers.get(method)  # `_successor` repeats all other calls

    async def publish(self, version: PlayerId, adapter: HeldAdapter | None = None) -> None:
        """Make a version playable; an adapter lost with its node is read from its checkpoint."""
        try:
            return await super().publish(version, await self._held(version, adapter))
        except ObjectLostError:
            log.warning("%s: the adapter of %s was lost with its node", self.name, version.name)
        with self._waits.on(f"{self.name}: the checkpoint of {version.name}"):
            async with asyncio.timeout(self._config.loop.stall_timeout):
                assert version.version is not None
                while not self._folder.checkpoint(version.version, version.label).is_dir():
                    await asyncio.sleep(LOOK_S)
        await super().publish(version, await self._held(version, None))

    async def _held(self, version: PlayerId, adapter: HeldAdapter | None) -> HeldAdapter | None:
        """Return the adapter to send; only on the driver's node can an actor read checkpoints."""
        if adapter is not None or self.place is None or self.place.node.is_drivers:
            return adapter
        assert version.version is not None
        folder = self._folder.checkpoint(version.version, version.label)
        return ray.put(await asyncio.to_thread(read_adapter, folder, version.name))

    async def _until_free(self, share: float) -> None:
        assert self.place is not None
        if self.place.node.is_drivers:
            await super()._until_free(share)
        else:
            await self.place.node.agent.until_free.remote(self.place.placement.gpus, share)

    async def _loses_place(self) -> bool:
        if await self._crew.has(self.place):
            return False
        self._there.clear()
        self._stream.close()
        self._crew.withdraw(self)
        return True
