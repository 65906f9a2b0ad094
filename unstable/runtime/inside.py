"""Objects that run inside the processes of a run: an actor, or a rank of the learner."""

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
    """A `LocalActor` in a process of its own, with one thread, which ends with its engine."""

    def __init__(self, config: RunConfig, folder: RunFolder, index: int) -> None:
        self._config = config
        self._folder = folder
        self._index = index
        sync = config.loop.mode == "sync"
        self._playing = Playing(lambda: self._actor, tells_state=sync, every_s=every_s(config))

    async def start(self) -> ProcessId:
        """Load the model; returns where this is. Raises as `LocalActor.start` does."""
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
        log.info("process %d on %s plays", own.pid, own.host)
        return own

    def _blocked(self, env: str) -> None:
        self._actor.collector.play_isolated(env)
        self._folder.add_blocking_game(env)

    async def begin(self, asked: bytes) -> None:
        """Play what `Stream` asks for; what comes of it is in the stream `ended`."""
        self._playing.begin(asked, _ends_with_engine)

    async def stop(self, number: int) -> None:
        """End a call of `begin`, or what was dealt."""
        self._playing.stop(number)

    async def ended(self) -> AsyncIterator[list[Part]]:
        """Yield what has come of all that is played; taking turns, `state` ends a round."""
        async for parts in self._playing.ended():
            yield parts

    async def call(self, method: str, *arguments: object) -> Any:
        """Call a method of `LocalActor`, other than `play`."""
        with _ends_with_engine():
            return await getattr(self._actor, method)(*arguments)


class LearnerProcess:
    """A `LocalLearner` in a process of its own: a rank of the learner."""

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
        """Open the place where the ranks meet: its host and port, held by this process.

        `alone`: all of them are on this machine, and meet where no other reaches.
        """
        from unstable.learners.ranks import listen

        host = LOOPBACK if alone else ray.util.get_node_ip_address()
        self._store = listen(host)
        return host, self._store.port

    def start(self, meeting: tuple[str, int] | None) -> ProcessId:
        """Meet the other ranks, if any, and load the model; returns where this is.

        Raises `ConfigError` as `LocalLearner` does.
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
        """`LocalLearner.adapter`: that it is there and, apart, the adapter."""
        return None, self.call("adapter", version)

    def call(self, method: str, *arguments: object) -> Any:
        """Call a method of `LocalLearner`."""
        return asyncio.run(getattr(self._learner, method)(*arguments))


def collect_rarely() -> None:
    """Let Python's garbage collector leave out all that is there by now, and pass less often.

    A third of the time of small games, and a fifth of a small update, went into passes over loaded
    libraries, which never go.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # objects made, and passes over the younger ones


@contextlib.contextmanager
def _ends_with_engine() -> Iterator[None]:
    """End the process if its engine dies; it is then started again with a new one."""
    try:
        yield
    except EngineDiedError:
        log.exception("this process ends with its engine")
        os._exit(1)


def _interfaces(address: str) -> dict[str, str]:
    """Return the variables of the interface with this address, unless the environment has them."""
    own = psutil.net_if_addrs().items()
    name = next((name for name, all in own if any(each.address == address for each in all)), None)
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {each: name for each in names if name and each not in os.environ}
