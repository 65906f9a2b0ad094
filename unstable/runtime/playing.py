"""Playing inside an actor's process: the other side of `stream.py`.

Games are judged, and their lines made, as they end; a message contains all results so far.
"""

import asyncio
import logging
import pickle
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import aclosing
from functools import partial
from typing import Any

from unstable.loop.ended import Ended
from unstable.runtime.local import LocalActor
from unstable.runtime.stream import DEALT, EVERY_S, Over, Pace, Part, Results, StreamCall
from unstable.types import ActorState, GameSpec

log = logging.getLogger(__name__)


class Playing:
    """All that a process plays, and the stream of its results."""

    def __init__(
        self, actor: Callable[[], LocalActor], *, tells_state: bool, every_s: float = EVERY_S
    ) -> None:
        """Initialize with a getter of the actor; if `tells_state`, its state ends each round."""
        self._actor = actor
        self._tells_state = tells_state
        self._tasks: dict[int, asyncio.Task[ActorState | None]] = {}
        self._parts: Pace[Part] = Pace(every_s)
        self._gathered: dict[int, Ended] = {}  # parts not sent yet that can grow, by call

    def begin(self, asked: bytes, guard: Callable[[], Any]) -> None:
        """Play pickled calls and dealt games, each call within a context that `guard` returns."""
        calls: list[StreamCall]
        dealt: list[GameSpec]
        calls, dealt = pickle.loads(asked)
        for call in calls:
            self._start(call.number, self._whole(call) if call.whole else self._round(call), guard)
        if dealt and DEALT not in self._tasks:
            self._start(DEALT, self._judge(DEALT, self._actor().collector.play_on()), guard)
        if dealt:
            self._actor().deal(dealt)

    def stop(self, number: int) -> None:
        """End a call or, if `number` is `DEALT`, the dealt games."""
        if task := self._tasks.pop(number, None):
            task.cancel()

    async def ended(self) -> AsyncIterator[list[Part]]:
        """Yield lists of results of all that is played, forever."""
        while True:
            parts = await self._parts.take()
            self._gathered.clear()
            yield parts

    def _start(
        self, number: int, play: Coroutine[Any, Any, ActorState | None], guard: Callable[[], Any]
    ) -> None:
        async def guarded() -> ActorState | None:
            with guard():
                return await play

        task = self._tasks[number] = asyncio.create_task(guarded())
        task.add_done_callback(partial(self._over, number))

    def _over(self, number: int, played: "asyncio.Task[ActorState | None]") -> None:
        """Send the end of a call."""
        if played.cancelled():
            return
        if (error := played.exception()) is None:
            over = Over(played.result())
        else:
            log.error("playing games failed", exc_info=error)
            over = Over(None, f"{type(error).__name__}: {error}")
        self._parts.put((number, over))
        self._tasks.pop(number, None)
        if not self._tasks:
            self._parts.hurry()

    async def _whole(self, call: StreamCall) -> None:
        async with aclosing(self._actor().collector.play_together(call.specs)) as played:
            async for results in played:
                self._parts.put((call.number, results))

    async def _round(self, call: StreamCall) -> ActorState | None:
        played = self._actor().collector.play_together(call.specs, call.enough)
        await self._judge(call.number, _lacking(played, call.given))
        return self._actor().collector.state() if self._tells_state else None

    async def _judge(self, number: int, played: AsyncGenerator[Results]) -> None:
        async with aclosing(self._actor().judged(played)) as lists:
            async for judged in lists:
                if number not in self._gathered:
                    self._gathered[number] = Ended.of([])
                    self._parts.put((number, self._gathered[number]))
                self._gathered[number].add(judged)


async def _lacking(
    played: AsyncGenerator[Results], given: frozenset[int]
) -> AsyncGenerator[Results]:
    """Yield the results of games that are not in `given`."""
    async with aclosing(played):
        async for results in played:
            if lacking := [each for each in results if each.spec.game_id not in given]:
                yield lacking
