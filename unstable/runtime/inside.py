"""Objects inside the processes of a run: an actor or a learner rank."""

import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import psutil
import ray

from unstable.config import RunConfig
from unstable.engines.base import EngineDiedError
from unstable.planning.machine import LOOPBACK
from unstable.records.folder import RunFolder
from unstable.runtime.judge import judging
from unstable.runtime.local import LocalActor, LocalLearner
from unstable.runtime.playing import Playing
from unstable.runtime.stream import Part, every_s
from unstable.types import Adapter
from unstable.types.processes import ProcessId

log = logging.getLogger(__name__)


class ActorProcess:
    """A `LocalActor` in its own process, which has one thread and ends with its engine."""

    def __init__(self, config: RunConfig, folder: RunFolder, index: int) -> None:
        self._config = config
        self._folder = folder
        self._index = index
        sync = config.loop.mode == "sync"
        self._playing = Playing(lambda: self._actor, tells_state=sync, every_s=every_s(config))

    async def start(self) -> ProcessId:
        """Load the model and return the process's id; raises the errors of `LocalActor.start`."""
        import torch

        from unstable.collectors.watch import LoopWatch
        from unstable.records.logs import setup_logging

        folder = self._folder
        setup_logging(folder, f"actor-{self._index}")
        torch.set_num_threads(1)
        config = self._config.with_ledgers(folder.endpoint).of_actor(self._index)
        with _ends_with_engine():
            log_file = folder.log(f"engine-{self._index}")
            self._actor = await LocalActor.start(config, folder, log_file, judging(config, folder))
        for env in folder.blocking_games:
            self._actor.collector.play_isolated(env)
        games = config.game_by_key
        LoopWatch(lambda env: games[env].turn_timeout, self._blocked, lambda _: os._exit(1))
        collect_rarely()
        own = ProcessId.own()
        log.info("process %d on %s ready", own.pid, own.host)
        return own

    def _blocked(self, env: str) -> None:
        if self._actor.collector.play_isolated(env):
            self._folder.add_blocking_game(env)

    async def begin(self, asked: bytes) -> None:
        """Play the pickled calls and dealt games of a `Stream`; `ended` yields their results."""
        self._playing.begin(asked, _ends_with_engine)

    async def stop(self, number: int) -> None:
        """End a call of `begin`, or the dealt games if `number` is `DEALT`."""
        self._playing.stop(number)

    async def ended(self) -> AsyncIterator[list[Part]]:
        """Yield lists of results; in synchronous play the actor's state ends a round."""
        async for parts in self._playing.ended():
            yield parts

    async def call(self, method: str, *arguments: object) -> Any:
        """Call a method of `LocalActor` other than `play`."""
        with _ends_with_engine():
            return await getattr(self._actor, method)(*arguments)


class LearnerProcess:
    """A `LocalLearner` in its own process: one learner rank."""

    def __init__(
        self, config: RunConfig, folder: RunFolder, threads: int, index: int, halvings: int = 0
    ) -> None:
        learner = config.learner.with_smaller_micro_batches(halvings)
        self._config = config.model_copy(update={"learner": learner})
        self._folder = folder
        self._threads = threads
        self._index = index
        self._store: Any = None

    def listen(self, *, alone: bool) -> tuple[str, int]:
        """Open the rendezvous of the ranks in this process and return its host and port.

        If `alone`, all ranks are on this machine and meet at the loopback address.
        """
        from unstable.learners.ranks import listen

        host = LOOPBACK if alone else ray.util.get_node_ip_address()
        self._store = listen(host)
        return host, self._store.port

    def start(self, meeting: tuple[str, int] | None) -> ProcessId:
        """Join the other ranks, if any, load the model and return the process's id.

        Raises the `ConfigError` of `LocalLearner`.
        """
        import torch

        from unstable.learners.ranks import join
        from unstable.records.logs import setup_logging

        setup_logging(self._folder, f"learner-{self._index}" if self._index else "learner")
        torch.set_num_threads(self._threads)
        ranks = None
        if meeting is not None:
            own = meeting[0] if meeting[0] == LOOPBACK else ray.util.get_node_ip_address()
            os.environ.update(_interfaces(own))
            store = self._store or torch.distributed.TCPStore(*meeting)
            assert isinstance(self._config.learner.num, int), "planning resolves auto"
            ranks = join(self._index, self._config.learner.num, store)
        self._learner = LocalLearner(self._config, self._folder, ranks)
        collect_rarely()
        return ProcessId.own()

    def adapter(self, version: int) -> tuple[None, Adapter]:
        """Return None, which confirms the call, and the adapter as a separate Ray value."""
        return None, self.call("adapter", version)

    def call(self, method: str, *arguments: object) -> Any:
        """Call a method of `LocalLearner`."""
        return asyncio.run(getattr(self._learner, method)(*arguments))


def collect_rarely() -> None:
    """Exclude all existing objects from Python's garbage collection, and make it less frequent.

    Passes over loaded libraries, which are never freed, took a third of the time of small games and
    a fifth of the time of a small update.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # new objects, then collections of each younger generation


@contextlib.contextmanager
def _ends_with_engine() -> Iterator[None]:
    """End the process if its engine dies; the driver then restarts it with a new engine."""
    try:
        yield
    except EngineDiedError:
        log.exception("the engine died; this process exits")
        os._exit(1)


def _interfaces(address: str) -> dict[str, str]:
    """Return the variables that select the interface with this address, unless already set."""
    own = psutil.net_if_addrs().items()
    name = next((name for name, all in own if any(each.address == address for each in all)), None)
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {each: name for each in names if name and each not in os.environ}
