"""Games to a process and what ends there, many to a message: Ray's part is paid by the list.

A process has one stream of results for as long as it lives. Games that are dealt, and calls that
play a round, are handed to it together; what has ended of all of them comes back in one list. The
other side is `playing.py`.
"""

import asyncio
import itertools
import pickle
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from unstable.config import RunConfig
from unstable.loop.ended import Ended
from unstable.types import ActorState, GameFailure, GameResult, GameSpec

EVERY_S = 0.02
"""Between two messages one way; what comes after a longer pause is sent at once."""
MOST_EVERY_S = 0.25
"""The same where there are many actors, so that the loop hears no more often of all together."""
DEALT = 0
"""The number of what is dealt, which is no call and has no end."""
T = TypeVar("T")
Results = list[GameResult | GameFailure]


class StreamCall(NamedTuple):
    """Games to be played, by a number of its own: a round, or with `whole` any games.

    Of a round its games come back as `Ended`, but for those that are `given` already; of any games
    their whole results.
    """

    number: int
    specs: Sequence[GameSpec]
    whole: bool = False
    enough: int | None = None
    given: frozenset[int] = frozenset()


class Over(NamedTuple):
    """The end of a call: what the actor knows then, if that is wanted, or what it raised."""

    state: ActorState | None
    error: str | None = None


Part = tuple[int, Results | Ended | Over]
"""What has come of a call, by its number."""


def every_s(config: RunConfig) -> float:
    """Seconds between two messages one way, to or from each actor of a run."""
    num = config.actors.num
    return min(MOST_EVERY_S, EVERY_S * max(1.0, num / 2)) if isinstance(num, int) else EVERY_S


class Pace(Generic[T]):
    """Gathers items into lists, so many seconds apart."""

    def __init__(self, every_s: float) -> None:
        self._items: list[T] = []
        self._filled = asyncio.Event()
        self._hurried = asyncio.Event()
        self._every_s = every_s
        self._taken = -every_s

    def put(self, item: T) -> None:
        """Add an item."""
        self._items.append(item)
        self._filled.set()

    def hurry(self) -> None:
        """Have what is there by now taken at once: nothing more is to come."""
        self._hurried.set()

    def remove(self, which: Callable[[T], bool]) -> bool:
        """Take items back; False where none of them is there any more."""
        kept = [item for item in self._items if not which(item)]
        found, self._items = len(kept) < len(self._items), kept
        return found

    async def take(self) -> list[T]:
        """All items, once there is one and the last list is long enough ago."""
        clock = asyncio.get_running_loop().time
        await self._filled.wait()
        rest = self._taken + self._every_s - clock()
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


class Stream:
    """The loop's side of one process; once that is dead all that is asked raises why."""

    def __init__(self, actor: Any, every_s: float = EVERY_S) -> None:
        """`actor` is Ray's handle of what has `begin`, `stop` and `ended`."""
        self._actor = actor
        self._numbers = itertools.count(DEALT + 1)
        self._open: dict[int, asyncio.Queue[Results | Ended | Over | BaseException]] = {}
        self._asked: Pace[StreamCall | Sequence[GameSpec]] = Pace(every_s)
        self._dead: BaseException | None = None
        self._tasks = [asyncio.create_task(each) for each in (self._send(), self._receive())]
        self._tasks[1].add_done_callback(self._end)

    async def play(
        self,
        specs: Sequence[GameSpec],
        *,
        whole: bool = False,
        enough: int | None = None,
        given: Iterable[int] = (),
    ) -> AsyncGenerator[Results | Ended | ActorState]:
        """Yield what comes of a `StreamCall`; the actor's state comes last where it is told.

        Raises `RayActorError` where the process dies, and `RuntimeError` for what it raised.
        """
        call = StreamCall(next(self._numbers), list(specs), whole, enough, frozenset(given))
        self._asked.put(call)
        async for part in self._parts(call.number, lambda asked: asked is call):
            yield part

    def deal(self, specs: Sequence[GameSpec]) -> None:
        """Have `play_on` play these too."""
        self._asked.put(specs)

    def play_on(self) -> AsyncGenerator[Results | Ended | ActorState]:
        """Yield what comes of all games that are dealt, for ever; raises like `play`."""
        return self._parts(DEALT, lambda asked: not isinstance(asked, StreamCall))

    async def _parts(
        self, number: int, is_asked: Callable[[StreamCall | Sequence[GameSpec]], bool]
    ) -> AsyncGenerator[Results | Ended | ActorState]:
        if self._dead is not None:
            raise self._dead
        parts = self._open[number] = asyncio.Queue()
        try:
            while not isinstance(part := await parts.get(), Over):
                if isinstance(part, BaseException):
                    raise part
                yield part
        except (asyncio.CancelledError, GeneratorExit):
            was_asked = not self._asked.remove(is_asked)
            if (was_asked or number == DEALT) and self._dead is None:
                self._actor.stop.remote(number)
            raise
        finally:
            del self._open[number]
        if part.error is not None:
            raise RuntimeError(part.error)
        if part.state is not None:
            yield part.state

    @property
    def is_broken(self) -> bool:
        """Return whether what was to come will not."""
        return self._dead is not None

    def close(self) -> None:
        """Ask and hear no more."""
        for task in self._tasks:
            task.cancel()

    async def _send(self) -> None:
        while True:
            calls: list[StreamCall] = []
            dealt: list[GameSpec] = []
            for asked in await self._asked.take():
                if isinstance(asked, StreamCall):
                    calls.append(asked)
                else:
                    dealt += asked
            # As bytes: Ray's own way of making them takes several times as long.
            self._actor.begin.remote(pickle.dumps((calls, dealt), pickle.HIGHEST_PROTOCOL))

    async def _receive(self) -> None:
        async for reference in self._actor.ended.remote():
            for number, part in await reference:
                if number in self._open:
                    self._open[number].put_nowait(part)

    def _end(self, received: "asyncio.Task[None]") -> None:
        """Raise the process's death to all that wait."""
        if received.cancelled() or (error := received.exception()) is None:
            return
        self._dead = error
        for parts in self._open.values():
            parts.put_nowait(error)
