"""Games to a process and results from it, many to a message: Ray's part is paid by the list.

A process has one stream of results for as long as it lives. Calls of `play` are handed to it
together, and what has ended of all of them comes back in one list, in the order in which it ended.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from unstable.collectors.collector import Collector
from unstable.config.plugins import faults_to
from unstable.records.games import line_pieces
from unstable.types import ActorState, GameFailure, GameResult, GameSpec

log = logging.getLogger(__name__)
EVERY_S = 0.02
"""Between two messages one way; what comes after a longer pause is sent at once."""
T = TypeVar("T")
Results = list[GameResult | GameFailure]


class Call(NamedTuple):
    """A call of `Collector.play`, by a number of its own."""

    number: int
    specs: Sequence[GameSpec]
    enough: int | None


class Over(NamedTuple):
    """The end of a call: what the actor knows then, if that is wanted, or what it raised."""

    state: ActorState | None
    error: str | None = None


Part = tuple[int, Results | Over]
"""What has come of a call, by its number."""


class Pace(Generic[T]):
    """Gathers items into lists, `EVERY_S` apart."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._filled = asyncio.Event()
        self._hurried = asyncio.Event()
        self._taken = -EVERY_S

    def put(self, item: T) -> None:
        """Add an item."""
        self._items.append(item)
        self._filled.set()

    def hurry(self) -> None:
        """Have what is there by now taken at once: nothing more is to come."""
        self._hurried.set()

    def remove(self, item: T) -> bool:
        """Take an item back; False where it is gone already."""
        is_there = item in self._items
        if is_there:
            self._items.remove(item)
        return is_there

    async def take(self) -> list[T]:
        """All items, once there is one and the last list is long enough ago."""
        clock = asyncio.get_running_loop().time
        await self._filled.wait()
        rest = self._taken + EVERY_S - clock()
        if rest > 0:
            try:
                async with asyncio.timeout(rest):
                    await self._hurried.wait()
            except TimeoutError:
                pass
        self._filled.clear()
        self._hurried.clear()
        self._taken = clock()
        items, self._items = self._items, []
        return items


class Playing:
    """The process's side: its calls of `play`, and the stream of what comes of them."""

    def __init__(self, collector: Callable[[], Collector], *, tells_state: bool) -> None:
        """`collector` gives it once a call begins; `tells_state`: a call ends with its state."""
        self._collector = collector
        self._tells_state = tells_state
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._parts: Pace[Part] = Pace()

    def begin(self, calls: Sequence[Call], guard: Callable[[], Any]) -> None:
        """Play them, each within a context that `guard` makes."""
        for call in calls:
            self._tasks[call.number] = asyncio.create_task(self._play(call, guard))

    def stop(self, number: int) -> None:
        """End a call, and its games."""
        if task := self._tasks.pop(number, None):
            task.cancel()

    async def ended(self) -> AsyncIterator[list[Part]]:
        """What has come of all calls, for ever."""
        while True:
            yield await self._parts.take()

    async def _play(self, call: Call, guard: Callable[[], Any]) -> None:
        over = Over(None)
        faults: list[BaseException] = []
        with faults_to(faults.append), guard():
            async for results in self._collector().play_together(call.specs, call.enough):
                self._parts.put((call.number, list(map(_with_lines, results))))
            if self._tells_state:
                over = Over(self._collector().state())
        for fault in faults:
            log.error("playing failed", exc_info=fault)
            over = Over(None, f"{type(fault).__name__}: {fault}")
        self._parts.put((call.number, over))
        self._tasks.pop(call.number, None)
        if not self._tasks:
            self._parts.hurry()


def _with_lines(result: GameResult | GameFailure) -> GameResult | GameFailure:
    """The result with the lines that the loop will write of it, as far as they can be made here.

    What cannot be is left to the loop, where the failure costs a line and no game.
    """
    if isinstance(result, GameResult):
        with contextlib.suppress(TypeError, ValueError):
            for game in result.games:
                game.line = line_pieces(game)
    return result


class Stream:
    """The loop's side of one process; once that is dead each call raises why."""

    def __init__(self, actor: Any) -> None:
        """`actor` is Ray's handle of what has `begin`, `stop` and `ended`."""
        self._actor = actor
        self._numbers = itertools.count()
        self._open: dict[int, asyncio.Queue[Results | Over | BaseException]] = {}
        self._asked: Pace[Call] = Pace()
        self._dead: BaseException | None = None
        self._tasks = [asyncio.create_task(each) for each in (self._send(), self._receive())]

    async def play(
        self, specs: Sequence[GameSpec], enough: int | None
    ) -> AsyncIterator[Results | ActorState]:
        """As `Collector.play_together`; the actor's state comes last where it is told.

        Raises `RayActorError` where the process dies, and `RuntimeError` for what it raised.
        """
        if self._dead is not None:
            raise self._dead
        call = Call(next(self._numbers), list(specs), enough)
        parts = self._open[call.number] = asyncio.Queue()
        self._asked.put(call)
        try:
            while not isinstance(part := await parts.get(), Over):
                if isinstance(part, BaseException):
                    raise part
                yield part
        except (asyncio.CancelledError, GeneratorExit):
            if not self._asked.remove(call) and self._dead is None:
                self._actor.stop.remote(call.number)
            raise
        finally:
            del self._open[call.number]
        if part.error is not None:
            raise RuntimeError(part.error)
        if part.state is not None:
            yield part.state

    @property
    def is_broken(self) -> bool:
        """Whether what was to come will not."""
        return self._dead is not None

    def close(self) -> None:
        """Ask and hear no more."""
        for task in self._tasks:
            task.cancel()

    async def _send(self) -> None:
        while True:
            self._actor.begin.remote(await self._asked.take())

    async def _receive(self) -> None:
        with faults_to(self._end):
            async for reference in self._actor.ended.remote():
                for number, part in await reference:
                    if number in self._open:
                        self._open[number].put_nowait(part)

    def _end(self, error: BaseException) -> None:
        """The process has died."""
        self._dead = error
        for parts in self._open.values():
            parts.put_nowait(error)
