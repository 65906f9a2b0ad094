"""What an actor's process runs."""

import contextlib
import gc
import logging
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

from unstable.config import RunConfig
from unstable.engines.base import EngineDiedError
from unstable.records.folder import RunFolder
from unstable.runtime.judge import judging
from unstable.runtime.local import LocalActor
from unstable.runtime.playing import Playing
from unstable.runtime.stream import Part, every_s
from unstable.types.processes import ProcessId

log = logging.getLogger(__name__)


class ActorProcess:
    """What an actor's process runs: a `LocalActor`, with one thread, which ends with its engine."""

    def __init__(self, config: RunConfig, folder: RunFolder, index: int) -> None:
        self._config = config
        self._folder = folder
        self._index = index
        sync = config.loop.mode == "sync"
        self._playing = Playing(lambda: self._actor, tells_state=sync, every_s=every_s(config))

    async def start(self) -> ProcessId:
        """Load the model; returns where this is. Raises as `LocalActor.start` does."""
        import torch

        from unstable.collectors.watch import Watch
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
        Watch(lambda env: games[env].turn_timeout, self._blocked, lambda _: os._exit(1))
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
        """What has come of all that is played. Taking turns the actor's `state` ends a round."""
        async for parts in self._playing.ended():
            yield parts

    async def call(self, method: str, *arguments: object) -> Any:
        """A method of `LocalActor`, but for `play`."""
        with _ends_with_engine():
            return await getattr(self._actor, method)(*arguments)


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
    """The process of a dead engine ends, and is then started again with a new one."""
    try:
        yield
    except EngineDiedError:
        log.exception("this process ends with its engine")
        os._exit(1)
