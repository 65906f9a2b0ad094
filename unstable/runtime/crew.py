"""Crew: nodes, actors and learner places of a run on a cluster, while nodes join and leave."""

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError

from unstable.config import ConfigError, RunConfig, RunFailedError
from unstable.engines.kinds import NEEDS
from unstable.loop.protocols import Actor
from unstable.planning.machine import Placement
from unstable.planning.plan import plan
from unstable.records.folder import RunFolder
from unstable.records.logs import LOG_BYTES
from unstable.runtime.cluster import again
from unstable.runtime.files import Files
from unstable.runtime.node_actor import NodeActor
from unstable.runtime.nodes import (
    ClusterNode,
    NodeContents,
    alive,
    differences,
    fitting,
    found_at,
    free_resources,
    look,
)
from unstable.runtime.placement import NodePlace, Start, free, in_turn, reserve
from unstable.runtime.survey import counted_here, model_folders, survey
from unstable.types.processes import Waits

log = logging.getLogger(__name__)
EVERY_S = 1.0
"""Seconds between two polls of the cluster."""
CLOSE_S = 10.0
LOGS_S = 5.0


class Crew:
    """The actors of a run on a cluster, and the places where they may run.

    `actors` are known to the loop; `joined` queues new ones for the loop to take in. If `grows`, a
    node that joins later gets as many actors as it has room for, otherwise only lost actors.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        nodes: Sequence[ClusterNode],
        waits: Waits,
        say: Callable[[str], None],
        *,
        grows: bool,
    ) -> None:
        self.waits, self.say = waits, say
        self.files = Files(config, folder)
        self.actors: list[Actor] = []
        self.joined: asyncio.Queue[Actor] = asyncio.Queue()
        self.probe: Callable[[NodeActor], Any] | None = None  # raises if an actor must not play
        self._config, self._folder, self._grows = config, folder, grows
        self._nodes = {node.name: node for node in nodes}
        self._driver: NodeContents = look(model_folders(config.model))
        self.known = {node.id for node in nodes}  # Ray's ids, also of nodes that were left out
        self._places: list[NodePlace] = []  # all places of the run
        self._spare: list[NodePlace] = []  # places without an actor
        self._made = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def reserve(self, placements: Sequence[Placement]) -> list[NodePlace]:
        """Reserve these places for the run with Ray."""
        places = reserve(placements, self._nodes)
        self._places += places
        return places

    def actor(self, place: NodePlace) -> NodeActor:
        """Return a new actor that has not started."""
        self._made += 1
        return NodeActor(self._config, self._folder, self._made - 1, place, self)

    @property
    def _own(self) -> list[NodeActor]:
        return [actor for actor in self.actors if isinstance(actor, NodeActor)]

    async def has(self, place: NodePlace | None) -> bool:
        """Return whether a place still belongs to the run and its node is alive."""
        if place is None or place not in self._places:
            return False
        if not (lives := await place.node.lives()):
            self._leave(place.node)
        return lives

    def _leave(self, node: ClusterNode) -> None:
        """Record that a node or its agent is gone; if still alive, the node counts as new."""
        if self._nodes.get(node.name) is node:
            del self._nodes[node.name]
            self.known.discard(node.id)
            self._forget([place for place in self._spare if place.node is node])
            self.say(f"node {node.name} left")

    def withdraw(self, actor: NodeActor) -> None:
        """Record that an actor has lost its place."""
        place, actor.place = actor.place, None
        if place is not None:
            self._forget([place])
            self.say(f"{actor.name} lost its place on {place.node.name}; its games are reassigned")
            self.begin(self._fill())

    def _forget(self, places: Sequence[NodePlace]) -> None:
        self._places = [each for each in self._places if each not in places]
        self._spare = [each for each in self._spare if each not in places]
        for place in places:
            if not any(each.group is place.group for each in self._places):
                free(place)

    async def host(self) -> NodeActor:
        """Return the least busy actor, to play for a lost one.

        Raises `RunFailedError` if no actor is left and no node joins in time.
        """
        seconds = self._config.loop.start_timeout
        try:
            with self.waits.on("a node with an actor"):
                async with asyncio.timeout(seconds):
                    while not (there := [each for each in self._own if not each.is_lost]):
                        await asyncio.sleep(EVERY_S)
        except TimeoutError:
            raise RunFailedError(
                f"no actor left, and no node joined within loop.start_timeout = {seconds:g} s; "
                f"{again(self._folder)}"
            ) from None
        return min(there, key=lambda each: each.load)

    async def watch(self) -> None:
        """Watch the cluster's nodes forever: record losses and take in new nodes."""
        while True:
            await asyncio.sleep(EVERY_S)
            living = await asyncio.to_thread(alive)
            ids = {node["NodeID"] for node in living}
            for node in [each for each in self._nodes.values() if each.id not in ids]:
                self._leave(node)
            for raw in fitting(living, self._config.cluster):
                if raw["NodeID"] not in self.known:
                    self.known.add(raw["NodeID"])
                    self.begin(self._take_in(raw))

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a background task; its error is logged."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task of the cluster failed", exc_info=error)

    async def _take_in(self, raw: dict[str, Any]) -> None:
        """Inspect a node that has joined, and start actors on it."""
        try:
            folders = model_folders(self._config.model)
            (node,) = await asyncio.to_thread(lambda: [*found_at([raw], folders, self._nodes)])
            if isinstance(node, ConfigError):
                raise node
            if lacks := [*differences(node, self._driver)]:
                raise ConfigError(lacks[0])
            if problem := counted_here(self._config):
                raise ConfigError(problem)
            self._nodes[node.name] = node
            free_actors = self._config.actors.model_copy(update={"num": "auto"})
            config = self._config.model_copy(update={"actors": free_actors})
            chosen = await asyncio.to_thread(plan, config, [node.machine], NEEDS, learner=False)
            places = self.reserve(chosen.actors)
        except ConfigError as error:
            self.say(f"new node not used: {error}")
            return
        self.say(f"node {node.name} joined, with room for {len(places)} actors")
        self._spare += places
        await self._fill()

    async def _fill(self) -> None:
        """Start actors at spare places: lost ones and, if the crew grows, new ones."""
        lost = [actor for actor in self._own if actor.is_lost and actor.place is None]
        spare, self._spare = self._spare, []
        kept = len(spare) if self._grows else len(lost)
        self._spare = spare[kept:]
        work: list[tuple[Placement | NodePlace, Start]] = []
        for index, place in enumerate(spare[:kept]):
            if index < len(lost):
                lost[index].place = place
                work.append((place, partial(lost[index].settle, place)))
            else:
                work.append((place, partial(self._grow, place)))
        await asyncio.gather(*in_turn(work))

    async def _grow(self, place: NodePlace) -> None:
        actor = self.actor(place)
        try:
            await actor.start()
            if self.probe is not None:
                await self.probe(actor)
        except (RayError, RuntimeError, TimeoutError, ConfigError) as error:
            log.warning("%s", actor.name, exc_info=error)
            self.say(f"{actor.name} failed to start on {place.node.name}: {error}")
            await actor.close()
            self._forget([place])
            return
        self.say(f"{actor.name} runs on {place.node.name}")
        self.joined.put_nowait(actor)

    async def learner_places(self, old: Sequence[NodePlace]) -> list[NodePlace]:
        """Return places for a learner that has died, if necessary on GPUs taken from actors.

        Raises `RunFailedError` if no node has room for it.
        """
        lost = [place for place in old if not await self.has(place)]
        self._forget(lost)
        nodes = [node for node in self._nodes.values() if lost and await node.lives()]
        cards = sum(len(place.placement.gpus) for place in lost)
        left = await asyncio.to_thread(free_resources)
        for node in sorted(nodes, key=lambda node: not node.is_drivers):
            lacking = cards or max(0, len(lost) - int(left.get(node.id, {}).get("CPU", 0)))
            if (freed := self._freed(node, lacking)) is not None:
                own = [(card,) for card in freed] if cards else [()] * len(lost)
                made = iter(self.reserve([Placement(node.name, gpus) for gpus in own]))
                return [next(made) if place in lost else place for place in old]
        if not lost:
            return list(old)
        raise RunFailedError(
            f"the learner's node left, and no other node has room; {again(self._folder)}"
        )

    def _freed(self, node: ClusterNode, count: int) -> list[str] | None:
        """Free `count` GPUs or CPUs that the run has on a node; return None if it has fewer."""
        here = [place for place in self._places if place.node is node]
        own = {card: place for place in here for card in place.placement.gpus}
        own = own or {str(index): place for index, place in enumerate(here)}
        if len(own) < count:
            return None
        chosen = sorted(own, key=lambda card: own[card] not in self._spare)[:count]
        self._forget([own[card] for card in chosen])  # ends the actors' processes there
        return chosen

    async def close(self) -> None:
        """Fetch the remaining logs of the nodes, then end the agents there."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.collect()
        agents = [node.agent for node in self._nodes.values() if node.root is not None]
        with contextlib.suppress(TimeoutError, RayError):
            async with asyncio.timeout(CLOSE_S):
                await asyncio.gather(
                    *(agent.close.remote() for agent in agents), return_exceptions=True
                )

    async def collect_logs(self) -> None:
        """Append logs of other nodes to the run's folder, forever."""
        while True:
            await asyncio.sleep(EVERY_S)
            await self.collect()

    async def collect(self) -> None:
        """Append the new lines of other nodes' logs to the run's folder."""
        for node in [*self._nodes.values()]:
            if node.root is not None:
                await collect_logs(node, self._folder)


@contextlib.asynccontextmanager
async def crew_of(
    config: RunConfig,
    folder: RunFolder,
    waits: Waits,
    say: Callable[[str], None],
    *,
    grows: bool,
) -> AsyncIterator[Crew]:
    """Yield the crew of a run on the joined cluster."""
    assert ray.is_initialized()
    nodes, lacks, seen, _ = await asyncio.to_thread(survey, config)
    for lack in lacks:
        say(f"note: node not used: {lack}")
    crew = Crew(config, folder, nodes, waits, say, grows=grows)
    crew.known |= seen
    crew.begin(crew.watch())
    crew.begin(crew.collect_logs())
    try:
        yield crew
    finally:
        await crew.close()


async def collect_logs(node: ClusterNode, folder: RunFolder) -> None:
    """Append what a node has logged since the last call; skip a node that does not answer."""
    try:
        async with asyncio.timeout(LOGS_S):
            found = await node.agent.logs.remote()
    except (RayError, TimeoutError) as error:
        log.debug("no logs from %s: %s", node.name, error)
        return
    for name, text in found.items():
        _append(folder, name, text)


def _append(folder: RunFolder, name: str, text: bytes) -> None:
    """Append to a log, rotated when full; if the disk is full, only this text is lost."""
    path = folder.log(name.removesuffix(".log"))
    try:
        path.parent.mkdir(exist_ok=True)
        if path.exists() and path.stat().st_size > LOG_BYTES:
            older = path.with_name(f"{path.name}.1")
            if older.exists():
                os.replace(older, path.with_name(f"{path.name}.2"))
            os.replace(path, older)
        with path.open("ab") as file:
            file.write(text)
    except OSError as error:
        log.warning("writing %s failed: %s", path, error)
