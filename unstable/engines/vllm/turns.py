"""Turns of versions, for an engine that computes with the weights of one version at a time."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

SHARE = 10
"""Length of a turn while other versions wait, as a multiple of the time of an exchange."""


class VersionTurns:
    """A scheduler that runs requests of one version together and makes other versions wait.

    A version is the folder of its weights, None the base. A turn goes to the version that has
    waited longest. `put` exchanges the weights while nothing runs; if it fails, all waiting and
    later requests get its error.
    """

    def __init__(self, put: Callable[[Path | None], Awaitable[None]]) -> None:
        self._put = put
        self.in_place: Path | None = None  # the version that the engine computes with
        self._running = 0
        self._waiting: dict[Path | None, list[asyncio.Future[None]]] = {}  # longest wait first
        self._exchange: asyncio.Task[None] | None = None
        self._took = 0.0  # seconds of the last exchange
        self._since = time.monotonic()  # start of this turn
        self._failure: BaseException | None = None

    @asynccontextmanager
    async def of(self, version: Path | None) -> AsyncIterator[None]:
        """Have the engine compute with that version until the block ends."""
        if self._failure is not None:
            raise self._failure
        if self._may_begin(version):
            self._running += 1
        else:
            await self._turn(version)
        try:
            yield
        finally:
            self._running -= 1
            self._next()

    def _may_begin(self, version: Path | None) -> bool:
        if version != self.in_place or self._exchange is not None:
            return False
        return not self._waiting or time.monotonic() - self._since < SHARE * self._took

    async def _turn(self, version: Path | None) -> None:
        """Wait for the version's turn; the request counts as running from then on."""
        begins: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(version, []).append(begins)
        self._next()
        try:
            await begins
        except asyncio.CancelledError:
            if begins.cancelled():
                self._withdraw(version, begins)
            elif begins.exception() is None:  # just started
                self._running -= 1
                self._next()
            raise

    def _withdraw(self, version: Path | None, begins: asyncio.Future[None]) -> None:
        waiting = self._waiting.get(version, [])
        if begins in waiting:
            waiting.remove(begins)
        if not waiting:
            self._waiting.pop(version, None)

    def _next(self) -> None:
        """Give the turn to the version that has waited longest, once nothing runs."""
        if self._waiting and not self._running and self._exchange is None:
            longest = next(iter(self._waiting))
            self._exchange = asyncio.create_task(self._give(longest), name="exchange of weights")
            self._exchange.add_done_callback(partial(self._given, longest, time.monotonic()))

    async def _give(self, version: Path | None) -> None:
        if version != self.in_place:
            await self._put(version)
            self.in_place = version

    def _given(self, version: Path | None, began: float, exchange: "asyncio.Task[None]") -> None:
        """Begin the requests that waited for the version, or fail all if the exchange failed."""
        self._exchange = None
        if exchange.cancelled():
            return
        if (error := exchange.exception()) is not None:
            self._fail(error)
        self._since = time.monotonic()
        self._took = self._since - began
        for begins in self._waiting.pop(version, []):
            if not begins.done():
                self._running += 1
                begins.set_result(None)
        self._next()  # all of them may have been cancelled

    def _fail(self, error: BaseException) -> None:
        """Fail all waiting and later requests: after a failed exchange the weights are unknown."""
        self._failure = error
        for waiting in self._waiting.values():
            for begins in waiting:
                if not begins.done():
                    begins.set_exception(error)
        self._waiting.clear()
