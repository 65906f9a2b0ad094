"""Batched messages between the loop and an actor's process, so that Ray's cost is paid per list.

A process has one stream of results for its lifetime. Dealt games and calls that play a round are
sent together; the results of all of them arrive in one list. The other side is `playing.py`.
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
"""Seconds between two messages in one direction; after a longer pause one is sent at once."""
MOST_EVERY_S = 0.25
"""Maximum of the message interval, which grows with the number of actors to limit the load."""
DEALT = 0
"""Number of the dealt games, which are not a call and have no end."""
T = TypeVar("T")
Results = list[GameResult | GameFailure]


class StreamCall(NamedTuple):
    """A numbered call to play games: a round of training games or, if `whole`, any games.

    A round's games arrive as `Ended`, except the ones in `given`; any games as whole results.
    """

    number: int
    specs: Sequence[GameSpec]
    whole: bool = False
    enough: int | None = None
    given: frozenset[int] = frozenset()


class Over(NamedTuple):
    """The end of a call: the actor's state, if requested, or the error that the call raised."""

    state: ActorState | None
    error: str | None = None


Part = tuple[int, Results | Ended | Over]
"""Number of a call, and a result of the call."""


def every_s(config: RunConfig) -> float:
    """Return the seconds between two messages in one direction, for each actor of a run."""
    num = config.actors.num
    return min(MOST_EVERY_S, EVERY_S * max(1.0, num / 2)) if isinstance(num, int) else EVERY_S


class Pace(Generic[T]):
    """A queue that gathers items into lists, taken at least `every_s` seconds apart."""

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
        """Release the items at once: no more are expected."""
        self._hurried.set()

    def remove(self, which: Callable[[T], bool]) -> bool:
        """Remove the items that `which` selects; return whether there were any."""
        kept = [item for item in self._items if not which(item)]
        found, self._items = len(kept) < len(self._items), kept
        return found

    async def take(self) -> list[T]:
        """Return all items, once there is one and `every_s` has passed since the last list."""
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
    """The loop's side of one process; once the process is dead, all calls raise its error."""

    def __init__(self, actor: Any, every_s: float = EVERY_S) -> None:
        """Connect to an actor, Ray's handle of an object with `begin`, `stop` and `ended`."""
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
        """Yield the results of a `StreamCall`, then the actor's state if the process sends it.

        Raises an error of `cluster.LOST` if the process dies, `RuntimeError` for one within it.
        """
        call = StreamCall(next(self._numbers), list(specs), whole, enough, frozenset(given))
        self._asked.put(call)
        async for part in self._parts(call.number, lambda asked: asked is call):
            yield part

    def deal(self, specs: Sequence[GameSpec]) -> None:
        """Add games for `play_on` to play."""
        self._asked.put(specs)

    def play_on(self) -> AsyncGenerator[Results | Ended | ActorState]:
        """Yield the results of all dealt games, forever; raises the errors of `play`."""
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
        """True if the process is dead, so that pending results will not arrive."""
        return self._dead is not None

    def close(self) -> None:
        """Stop sending and receiving."""
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
            # Pickled here: Ray's own serialization takes several times as long.
            self._actor.begin.remote(pickle.dumps((calls, dealt), pickle.HIGHEST_PROTOCOL))

    async def _receive(self) -> None:
        async for reference in self._actor.ended.remote():
            for number, part in await reference:
                if number in self._open:
                    self._open[number].put_nowait(part)

    def _end(self, received: "asyncio.Task[None]") -> None:
        """Raise the process's death in all open calls."""
        if received.cancelled() or (error := received.exception()) is None:
            return
        self._dead = error
        for parts in self._open.values():
            parts.put_nowait(error)
