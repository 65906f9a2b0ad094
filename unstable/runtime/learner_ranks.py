"""Learner ranks, one process each, which the loop calls as one learner.

On a cluster, a learner whose node is gone is restarted from the last saved version; all calls since
that version are repeated.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError

from unstable.config import RunConfig, RunFailedError
from unstable.loop.protocols import HeldAdapter, HeldVersion, Learner
from unstable.planning.machine import Placement
from unstable.records.folder import RunFolder
from unstable.runtime.cluster import LOST, MEMORY, Process, again, forwarded, in_time
from unstable.runtime.crew import Crew
from unstable.runtime.inside import LearnerProcess
from unstable.runtime.local import LocalLearner
from unstable.runtime.nodes import read_files, write_files
from unstable.runtime.placement import NodePlace
from unstable.types.processes import Waits

log = logging.getLogger(__name__)
FILES = "files"
"""Concurrency group of calls that write or return held versions while others compute."""
GRACE_S = 5.0
"""Seconds to wait, after a rank's error, for the death of another rank that may explain it."""
CHANGES = {"update", "imitate", "restore", "scale_rate", "hold"}
"""Methods that change a learner, or that a later call depends on."""
RESTARTS = 2
"""Deaths of a learner on a cluster that a run survives."""


class DiedError(RunFailedError):
    """Death of the learner's process."""


class FullError(DiedError):
    """Out of memory on a GPU of ranks that share a model; smaller micro-batches may fit."""


class Journal:
    """Calls since the last saved version, in order; `version` is None before any is saved.

    Calls are recorded only if the learner `may_restart`, because batches are large.
    """

    def __init__(self, *, may_restart: bool) -> None:
        self._keeps = may_restart
        self.version: int | None = None
        self.since: list[tuple[str, tuple[Any, ...]]] = []

    def add(self, method: str, *arguments: object) -> None:
        """Record a call that was answered."""
        if self._keeps and method in CHANGES:
            self.since.append((method, arguments))

    def saved(self, version: int) -> None:
        """Forget the calls that led to a held version, which is now saved."""
        if not self._keeps:
            return
        place = self.since.index(("hold", (version,)))
        self.version, self.since = version, self.since[place + 1 :]

    def loaded(self, version: int) -> None:
        """Start over from the checkpoint of a version."""
        self.version, self.since = version, []


class RemoteLearner(Learner):
    """The learner as the loop sees it: a `LocalLearner` process (rank) at each of `places`.

    The death or error of a rank raises in the call that meets it and ends all ranks, since the
    others would wait for it. The ranks share `threads` evenly. With a crew, the learner is
    restarted after a death, at most `RESTARTS` times. Ranks that share a model are also restarted
    when a GPU is full, with halved micro-batches, as long as these can be halved.
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
        self._full: BaseException | None = None  # out-of-memory error that ended these ranks
        self._restarting = asyncio.Lock()
        # On a cluster, the paths of the files are known only in `start`.
        self._ranks: Sequence[Process] = () if crew is not None else self._made()

    def _made(self) -> list[Process]:
        """Return a process for each rank; none has started."""
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
        """Return config and folder with the paths that are valid at a place."""
        if not isinstance(place, NodePlace):
            return self._config, self._folder
        assert self._crew is not None
        return self._crew.files.config_at(place.node), self._crew.files.folder_at(place.node)

    @property
    def _afar(self) -> list[NodePlace]:
        """Places of ranks that do not see the run's folder, one per node."""
        places = [each for each in self._places if isinstance(each, NodePlace)]
        return [*{place.node.id: place for place in places if not place.node.is_drivers}.values()]

    async def start(self) -> None:
        """Start all ranks and load the model."""
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
        version = await self._lasting(self._keep)
        self._journal.add("hold", version)
        return HeldVersion(version, self)

    async def _keep(self) -> int:
        """Keep a copy at rank 0, or at all ranks if a copy is gathered from their shards."""
        spread = self._config.model.trains_all and self._config.learner.parallel == "fsdp"
        ranks = self._ranks if spread else self._ranks[:1]
        return (await self._answers("hold", [rank.call("keep") for rank in ranks]))[0]

    async def adapter(self, version: int) -> HeldAdapter:
        """Return Ray's reference to the adapter of a held version; an update may run meanwhile.

        Ray sends the adapter once to each node that has an actor, and not to this process.
        """

        async def adapter() -> HeldAdapter:
            ask = self._ranks[0].actor.adapter.options(num_returns=2, concurrency_group=FILES)
            there, adapter = ask.remote(version)
            await self._answers("adapter", [there])
            return adapter

        return await self._lasting(adapter)

    async def save(self, version: int) -> None:
        """Write the checkpoint of a held version; an update may run meanwhile.

        If the learner does not see the run's folder, this process fetches and writes the files.
        Raises `RunFailedError` if the checkpoint cannot be written.
        """
        try:
            await self._lasting(partial(self._save, version))
        except OSError as error:
            reason = getattr(error, "cause", error)
            last = f"; last checkpoint: {whole[-1]}" if (whole := self._folder.versions()) else ""
            raise RunFailedError(
                f"checkpoint {version} cannot be written ({reason.strerror or reason}{last}); "
                f"free disk space; {again(self._folder)}"
            ) from error
        self._journal.saved(version)

    async def _save(self, version: int) -> None:
        place, first = self._folder.checkpoint(version), self._places[0]
        there = place.relative_to(self._folder.root).as_posix()
        if place.exists() and self._deaths + self._halvings:  # written before the restart
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
        """Call a method that reads a checkpoint, after sending it to nodes that do not see it."""
        folder = self._folder.checkpoint(version)
        there = folder.relative_to(self._folder.root).as_posix()
        if self._afar:
            files = await asyncio.to_thread(read_files, folder)
            given = ray.put({f"{there}/{name}": content for name, content in files.items()})
            await self._agents(*(each.node.agent.put.remote(given) for each in self._afar))
        await self._answers(method, [rank.call(method, version) for rank in self._ranks])
        await self._agents(*(each.node.agent.remove.remote(there) for each in self._afar))

    async def _agents(self, *asked: Awaitable[Any]) -> list[Any]:
        """Return the answers of node agents; raise `DiedError` if one is gone with its node."""
        ranks = self._ranks
        try:
            return await asyncio.gather(*asked)
        except LOST as error:
            end(ranks)
            raise DiedError(f"the learner's node left; {again(self._folder)}") from error

    probes = forwarded(LocalLearner.probes)
    update = forwarded(LocalLearner.update)
    loss_on = forwarded(LocalLearner.loss_on)
    imitate = forwarded(LocalLearner.imitate)
    logprobs = forwarded(LocalLearner.logprobs)
    logprobs_under = forwarded(LocalLearner.logprobs_under)
    scale_rate = forwarded(LocalLearner.scale_rate)

    async def _call(self, method: str, *arguments: object) -> Any:
        """Call a method of all ranks and return rank 0's answer."""

        async def call() -> Any:
            shared = [ray.put(argument) for argument in arguments]
            answers = await self._answers(method, [r.call(method, *shared) for r in self._ranks])
            return answers[0]

        answer = await self._lasting(call)
        self._journal.add(method, *arguments)
        return answer

    async def _lasting(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call, and repeat it after each death that the learner survives."""
        while True:
            ranks = self._ranks
            try:
                return await call()
            except DiedError as death:
                await self._restart(ranks, death)

    async def _restart(self, dead: Sequence[Process], death: "DiedError") -> None:
        """Restart the ranks, once for all calls that saw them die; raise a death too many."""
        async with self._restarting:
            if self._ranks is not dead:
                return
            while True:
                self._full = None
                if isinstance(death, FullError):
                    self._halvings += 1
                elif self._crew is None or self._deaths == RESTARTS:
                    raise death
                else:
                    self._deaths += 1
                log.warning("the learner is restarted: %s", death)
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
        """Return the message about a restart that the user reads."""
        what = "ran out of GPU memory" if isinstance(death, FullError) else "died"
        version = self._journal.version
        last = "the start" if version is None else f"version {version}"
        return f"the learner {what} and is restarted from {last}"

    async def _catch_up(self) -> None:
        """Restore the dead learner's state: load the last saved version and repeat calls since."""
        if self._journal.version is not None:
            await self._with_checkpoint("load", self._journal.version)
        for method, arguments in self._journal.since:
            log.info("repeating the call of %s", method)
            if method == "hold":
                await self._keep()
            elif method == "restore":
                await self._with_checkpoint(method, *arguments)
            else:
                await self._answers(method, [r.call(method, *arguments) for r in self._ranks])

    async def _answers(self, method: str, asked: Sequence[Awaitable[Any]]) -> list[Any]:
        """Return the ranks' answers; a death, timeout or error (not of `save`) ends all ranks."""
        ranks = self._ranks  # a restart may replace them before a death is known
        calls = [asyncio.ensure_future(each) for each in asked]
        loop = self._config.loop
        limit = "start_timeout" if method == "start" else "stall_timeout"
        seconds = getattr(loop, limit)
        try:
            with self._waits.on(f"learner: {method}"):
                async with asyncio.timeout(seconds):
                    return await asyncio.gather(*calls)
        except TimeoutError as error:
            end(ranks)
            raise RunFailedError(
                f"the learner did not answer '{method}' within loop.{limit} = {seconds:g} s; "
                f"raise it if updates take longer; {again(self._folder)}"
            ) from error
        except RayError as error:
            # Broken connections of the survivors are sometimes reported before the death.
            await asyncio.wait(calls, timeout=GRACE_S)
            known = [call.exception() for call in calls if call.done()]
            # Other calls see only the deaths that follow.
            full = self._full = next(filter(_is_full, known), self._full)
            if method != "save" or isinstance(error, LOST):
                end(ranks)
            await asyncio.gather(*calls, return_exceptions=True)
            if full:
                raise FullError(str(getattr(full, "cause", full))) from full
            death = next((e for e in known if isinstance(e, LOST)), None)
            if death is None:
                raise error from None
            raise DiedError(
                f"the learner's process died in '{method}'; if its log shows no error, "
                f"{MEMORY}: lower learner.micro_batch_size or actors.num; {again(self._folder)}"
            ) from death


def _is_full(error: BaseException | None) -> bool:
    """Return whether a rank's error allows a restart with smaller micro-batches."""
    # Unpickling such an error loads its module. Importing it here would take seconds, and fail
    # after the end of W&B's process, whose import hooks remain.
    module = sys.modules.get("unstable.learners.micro_batches")
    return module is not None and isinstance(getattr(error, "cause", error), module.BeginAgainError)


def end(ranks: Sequence[Process]) -> None:
    """Kill the processes of these ranks."""
    for rank in ranks:
        rank.kill()


def allocator(placement: Placement) -> dict[str, str]:
    """Return the variable that makes torch allocate GPU memory in expandable segments.

    Micro-batches vary in length and would leave holes that later ones do not fit. Engines do not
    get the variable: vLLM could not put its memory to sleep.
    """
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    given = any(name in os.environ for name in names)
    return {} if given or not placement.gpus else {names[0]: "expandable_segments:True"}
