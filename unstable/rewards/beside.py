"""Concurrent judging: one task per game, while the next games are read.

Tasks report their end by callbacks: `asyncio.wait` would scan all waiting tasks each time that one
ends, which took a tenth of small games' time.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from itertools import count
from typing import Any, Generic, TypeVar

G = TypeVar("G")
J = TypeVar("J")


class Beside(Generic[G, J]):
    """A judge of the games that `played` yields, with lists of finished results in game order."""

    def __init__(
        self, played: AsyncGenerator[list[G]], judge: Callable[[G], Coroutine[Any, Any, J]]
    ) -> None:
        self._played = played
        self._judge = judge
        self._waiting: dict[asyncio.Task[J], int] = {}  # number in order of arrival
        self._ended: set[asyncio.Task[J]] = set()
        self._numbers = count()
        self._woken = asyncio.Event()

    async def lists(self) -> AsyncGenerator[list[J]]:
        """Yield results as they finish; closing the iterator cancels running judges."""
        coming: asyncio.Future[list[G] | None] | None = self._next()
        try:
            while self._waiting or coming is not None:
                await self._woken.wait()
                self._woken.clear()
                if coming is not None and coming.done():
                    games = coming.result()
                    coming = None if games is None else self._next()
                    await self._begin(games or ())
                if done := self._taken():
                    yield [task.result() for task in done]
        finally:
            left: list[asyncio.Future[Any]] = [*self._waiting]
            if coming is not None:
                left.append(coming)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)

    def _next(self) -> "asyncio.Future[list[G] | None]":
        following: Awaitable[list[G] | None] = anext(self._played, None)
        future = asyncio.ensure_future(following)
        future.add_done_callback(lambda _: self._woken.set())
        return future

    async def _begin(self, games: Sequence[G]) -> None:
        """Start judging games; judges that do not wait finish at once."""
        new = [asyncio.create_task(self._judge(game)) for game in games]
        for task in new:
            self._waiting[task] = next(self._numbers)
            task.add_done_callback(self._end)
        await asyncio.sleep(0)
        self._ended.update(task for task in new if task.done())

    def _end(self, task: "asyncio.Task[J]") -> None:
        if task in self._waiting:
            self._ended.add(task)
            self._woken.set()

    def _taken(self) -> list["asyncio.Task[J]"]:
        done = sorted(self._ended, key=self._waiting.__getitem__)
        self._ended.clear()
        for task in done:
            del self._waiting[task]
        return done
