"""The learner's ranks, each a process of its own, and how the loop calls them as one.

On a cluster it is started again where its node has gone, from the last version that is on file:
what it was asked for since then is asked once more.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from unstable.config import RunConfig, RunFailedError
from unstable.loop.protocols import HeldAdapter, HeldVersion, Learner
from unstable.planning.machine import Placement
from unstable.records.folder import RunFolder
from unstable.runtime.cluster import MEMORY, Process, again, forwarded, in_time
from unstable.runtime.crew import Crew
from unstable.runtime.inside import LearnerProcess
from unstable.runtime.local import LocalLearner
from unstable.runtime.nodes import read_files, write_files
from unstable.runtime.placement import NodePlace
from unstable.types.processes import Waits

log = logging.getLogger(__name__)
FILES = "files"
"""Calls that write or hand out what is held, beside those that compute."""
GRACE_S = 5.0
"""Seconds that a rank's death is waited for after another rank's error, which it may explain."""
CHANGES = {"update", "imitate", "restore", "scale_rate", "hold"}
"""Methods of a learner that make it another one, or that another call needs."""
RESTARTS = 2
"""Deaths of a learner on a cluster that are survived."""


class DiedError(RunFailedError):
    """The learner's process has died."""


class FullError(DiedError):
    """A card of ranks that share a model was full; they can go on with smaller micro-batches."""


class Journal:
    """Calls since the last version on file, in their order: `version`, or None for the start.

    It keeps what it is told only where a learner `may_restart`: batches are large.
    """

    def __init__(self, *, may_restart: bool) -> None:
        self._keeps = may_restart
        self.version: int | None = None
        self.since: list[tuple[str, tuple[Any, ...]]] = []

    def add(self, method: str, *arguments: object) -> None:
        """Take in a call that was answered."""
        if self._keeps and method in CHANGES:
            self.since.append((method, arguments))

    def saved(self, version: int) -> None:
        """Forget what led to a held version that is on file now."""
        if not self._keeps:
            return
        place = self.since.index(("hold", (version,)))
        self.version, self.since = version, self.since[place + 1 :]

    def loaded(self, version: int) -> None:
        """Begin anew from the checkpoint of a version."""
        self.version, self.since = version, []


class RemoteLearner(Learner):
    """The learner as the loop sees it, however many ranks it has: `LocalLearner`s elsewhere.

    The death or error of a rank is an error of the call that met it, and the end of all ranks: the
    others would wait for it. There is a rank at each of `places`; `threads` are shared out. With a
    crew it is started again after a death, `RESTARTS` times. Ranks that share a model are where a
    card was full, with half of the micro-batches, as long as there is something to halve.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        places: Sequence[Placement | NodePlace],
        threads: int,
        waits: Waits | None = None,
        crew: Crew | None = None,
    ) -> None:
        self._config, self._folder = config, folder
        self._waits = waits or Waits()
        self._crew, self._places = crew, places
        self._threads = max(1, threads // len(places))
        is_sharded = config.learner.parallel == "fsdp" and len(places) > 1
        self._journal = Journal(may_restart=crew is not None or is_sharded)
        self._deaths = self._halvings = 0
        self._restarting = asyncio.Lock()
        # At a node it is known only later which files there are.
        self._ranks: Sequence[Process] = () if crew is not None else self._made()

    def _made(self) -> list[Process]:
        """Make a process for each rank, none of which has started."""
        return [
            Process(
                LearnerProcess,
                (*self._at(place), self._threads, index, self._halvings),
                place,
                threads=self._threads,
                variables=allocator(place.placement if isinstance(place, NodePlace) else place),
                concurrency_groups={FILES: 1},
            )
            for index, place in enumerate(self._places)
        ]

    def _at(self, place: Placement | NodePlace) -> tuple[RunConfig, RunFolder]:
        """Return config and folder as they are at a place."""
        if not isinstance(place, NodePlace):
            return self._config, self._folder
        assert self._crew is not None
        return self._crew.files.config_at(place.node), self._crew.files.folder_at(place.node)

    @property
    def _afar(self) -> list[NodePlace]:
        """Places of ranks that do not see the run's folder, one of each node."""
        places = [each for each in self._places if isinstance(each, NodePlace)]
        return [*{place.node.id: place for place in places if not place.node.is_drivers}.values()]

    async def start(self) -> None:
        """Load the model."""
        if self._crew is not None:
            for place in self._places:
                assert isinstance(place, NodePlace)
                await self._crew.files.give(place.node, "learn")
            self._ranks = self._made()
        nodes = {each.node.id for each in self._places if isinstance(each, NodePlace)}
        async with in_time(self._config, "learner", self._folder):
            meeting = None
            if len(self._ranks) > 1:
                meeting = await self._ranks[0].actor.listen.remote(alone=len(nodes) <= 1)
            started = [rank.start(meeting) for rank in self._ranks]
            pids = await self._answers("start", started)
        names = ("learner", *(f"learner-{index}" for index in range(1, len(pids))))
        self._waits.processes.update(zip(names, pids, strict=True))

    async def hold(self) -> HeldVersion:
        """Keep a copy at one rank, or at all of them where each has a part of the weights."""
        spread = self._config.model.trains_all and self._config.learner.parallel == "fsdp"

        async def keep() -> int:
            ranks = self._ranks if spread else self._ranks[:1]
            return (await self._answers("hold", [rank.call("keep") for rank in ranks]))[0]

        version = await self._lasting(keep)
        self._journal.add("hold", version)
        return HeldVersion(version, self)

    async def adapter(self, version: int) -> HeldAdapter:
        """Return Ray's reference to the adapter of a held version, while an update may go on.

        So it goes to each node that has an actor, once, and not to this process.
        """

        async def adapter() -> HeldAdapter:
            ask = self._ranks[0].actor.adapter.options(num_returns=2, concurrency_group=FILES)
            there, adapter = ask.remote(version)
            await self._answers("adapter", [there])
            return adapter

        return await self._lasting(adapter)

    async def save(self, version: int) -> None:
        """Write the checkpoint of a version that is held, while an update may go on.

        Where the learner does not see the run's folder, its files come here and are written here.
        Raises `RunFailedError` where it cannot be written.
        """
        try:
            await self._lasting(partial(self._save, version))
        except OSError as error:
            reason = getattr(error, "cause", error)
            last = f", after {whole[-1]}" if (whole := self._folder.versions()) else ""
            raise RunFailedError(
                f"checkpoint {version} cannot be written{last} "
                f"({reason.strerror or reason}); make room for it; {again(self._folder)}"
            ) from error
        self._journal.saved(version)

    async def _save(self, version: int) -> None:
        place, first = self._folder.checkpoint(version), self._places[0]
        there = place.relative_to(self._folder.root).as_posix()
        if place.exists() and self._deaths + self._halvings:  # it ended as it had written it
            return
        agent = first.node.agent if isinstance(first, NodePlace) and first in self._afar else None
        if agent is not None and self._deaths:
            await self._agents(agent.remove.remote(there))
        await self._answers("save", [self._ranks[0].call("save", version, group=FILES)])
        if agent is not None:
            (files,) = await self._agents(agent.take.remote(there))
            await asyncio.to_thread(write_files, place, files)

    async def load(self, version: int) -> None:
        await self._lasting(partial(self._with_checkpoint, "load", version))
        self._journal.loaded(version)

    async def restore(self, version: int) -> None:
        await self._lasting(partial(self._with_checkpoint, "restore", version))
        self._journal.add("restore", version)

    async def _with_checkpoint(self, method: str, version: int) -> None:
        """Call a method that reads a checkpoint, which goes to nodes that do not see it."""
        folder = self._folder.checkpoint(version)
        there = folder.relative_to(self._folder.root).as_posix()
        if self._afar:
            files = await asyncio.to_thread(read_files, folder)
            given = ray.put({f"{there}/{name}": content for name, content in files.items()})
            await self._agents(*(each.node.agent.put.remote(given) for each in self._afar))
        await self._answers(method, [rank.call(method, version) for rank in self._ranks])
        await self._agents(*(each.node.agent.remove.remote(there) for each in self._afar))

    async def _agents(self, *asked: Awaitable[Any]) -> list[Any]:
        """Return the answers of nodes' agents; one that does not answer has gone with its node."""
        ranks = self._ranks
        try:
            return await asyncio.gather(*asked)
        except RayActorError as error:
            end(ranks)
            raise DiedError(f"the learner's node has gone; {again(self._folder)}") from error

    update = forwarded(LocalLearner.update)
    loss_on = forwarded(LocalLearner.loss_on)
    imitate = forwarded(LocalLearner.imitate)
    logprobs = forwarded(LocalLearner.logprobs)
    logprobs_under = forwarded(LocalLearner.logprobs_under)
    scale_rate = forwarded(LocalLearner.scale_rate)

    async def _call(self, method: str, *arguments: object) -> Any:
        """Call a method of all ranks at once; rank 0's answer, which is that of all."""

        async def call() -> Any:
            shared = [ray.put(argument) for argument in arguments]
            answers = await self._answers(method, [r.call(method, *shared) for r in self._ranks])
            return answers[0]

        answer = await self._lasting(call)
        self._journal.add(method, *arguments)
        return answer

    async def _lasting(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call, and again after each death that is survived."""
        while True:
            ranks = self._ranks
            try:
                return await call()
            except DiedError as death:
                await self._restart(ranks, death)

    async def _restart(self, dead: Sequence[Process], death: "DiedError") -> None:
        """Start it again, once however many calls saw it die; raises the death at one too many."""
        async with self._restarting:
            if self._ranks is not dead:
                return
            while True:
                if isinstance(death, FullError):
                    self._halvings += 1
                elif self._crew is None or self._deaths == RESTARTS:
                    raise death
                else:
                    self._deaths += 1
                log.warning("the learner is started again: %s", death)
                if self._crew is None:
                    self._ranks = self._made()
                else:
                    self._crew.say(self._begins_again(death))
                    places = [each for each in self._places if isinstance(each, NodePlace)]
                    self._places = await self._crew.learner_places(places)
                try:
                    await self.start()
                    await self._catch_up()
                    return
                except DiedError as another:
                    death = another

    def _begins_again(self, death: DiedError) -> str:
        """Return the line on a restart that a person reads."""
        what = "was full" if isinstance(death, FullError) else "died"
        version = self._journal.version
        last = "the beginning" if version is None else f"version {version}"
        return f"the learner {what} and is started again from {last}"

    async def _catch_up(self) -> None:
        """Come to where the dead one was: what is on file, then all that it was asked since."""
        if self._journal.version is not None:
            await self._with_checkpoint("load", self._journal.version)
        for method, arguments in self._journal.since:
            log.info("asked again: %s", method)
            if method == "hold":
                await self._answers(method, [self._ranks[0].call("keep")])
            elif method == "restore":
                await self._with_checkpoint(method, *arguments)
            else:
                await self._answers(method, [r.call(method, *arguments) for r in self._ranks])

    async def _answers(self, method: str, asked: Sequence[Awaitable[Any]]) -> list[Any]:
        """Await answers of ranks; an error, a death or no answer in time ends all ranks."""
        ranks = self._ranks  # by the time that a death is known there may be others
        calls = [asyncio.ensure_future(each) for each in asked]
        loop = self._config.loop
        seconds = loop.start_timeout if method == "start" else loop.stall_timeout
        try:
            with self._waits.on(f"learner: {method}"):
                async with asyncio.timeout(seconds):
                    return await asyncio.gather(*calls)
        except TimeoutError as error:
            end(ranks)
            raise RunFailedError(
                f"the learner has not answered '{method}' in loop.stall_timeout = {seconds:g} s; "
                f"raise it where an update may take longer; {again(self._folder)}"
            ) from error
        except RayError as error:
            # A death also breaks the survivors' connections, and is sometimes reported after that.
            await asyncio.wait(calls, timeout=GRACE_S)
            known = [call.exception() for call in calls if call.done()]
            if method != "save" or isinstance(error, RayActorError):
                end(ranks)
            await asyncio.gather(*calls, return_exceptions=True)
            if full := next(filter(_is_full, known), None):
                raise FullError(str(getattr(full, "cause", full))) from full
            death = next((e for e in known if isinstance(e, RayActorError)), None)
            if death is None:
                raise error from None
            raise DiedError(
                f"the learner's process has died in '{method}'; if its log does not say why, "
                f"{MEMORY}: lower learner.micro_batch_size or actors.num; {again(self._folder)}"
            ) from death


def _is_full(error: BaseException | None) -> bool:
    """Return whether a rank's error lets all begin again with smaller micro-batches."""
    # An error that came here has brought its module. To import it takes seconds, and fails once
    # the process of W&B is gone, which has hooks on imports.
    module = sys.modules.get("unstable.learners.micro_batches")
    return module is not None and isinstance(getattr(error, "cause", error), module.BeginAgainError)


def end(ranks: Sequence[Process]) -> None:
    """End these processes."""
    for rank in ranks:
        rank.kill()


def allocator(placement: Placement) -> dict[str, str]:
    """Return the variable that has torch keep a card's memory in segments that grow.

    Micro-batches are of any length, and would leave holes that the next ones do not fit. An engine
    has none of it: vLLM could not put its memory to sleep.
    """
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    given = any(name in os.environ for name in names)
    return {} if given or not placement.gpus else {names[0]: "expandable_segments:True"}
