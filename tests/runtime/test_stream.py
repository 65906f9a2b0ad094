"""Calls of `play` go to a process together, and their results come back in lists, in order."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from tests.helpers.collector import Scripted, collector, specs
from unstable.runtime.stream import EVERY_S, Part, Playing, Stream
from unstable.types import ActorState, GameResult


class Handle:
    """What Ray's handle of a process would be, in this one; notes what was sent."""

    def __init__(self, *, tells_state: bool = False, in_flight: int = 16) -> None:
        self.collector = collector(Scripted(lambda: 2), in_flight)
        playing = Playing(lambda: self.collector, tells_state=tells_state)
        self.calls: list[list[int]] = []
        self.lists: list[list[Part]] = []
        self.dies = asyncio.Event()

        def begin(calls: Any) -> None:
            self.calls.append([call.number for call in calls])
            playing.begin(calls, nullcontext)

        async def ended() -> AsyncIterator[Any]:
            async for parts in playing.ended():
                if self.dies.is_set():
                    raise RayActorError
                self.lists.append(parts)
                future = asyncio.get_running_loop().create_future()
                future.set_result(parts)
                yield future

        self.begin = SimpleNamespace(remote=begin)
        self.stop = SimpleNamespace(remote=playing.stop)
        self.ended = SimpleNamespace(remote=ended)


async def ids(stream: Stream, first: int, count: int) -> list[int]:
    found = []
    made = [spec for spec in specs(first + count) if spec.game_id >= first]
    async for results in stream.play(made, None):
        assert isinstance(results, list)
        found += [result.spec.game_id for result in results]
    return found


async def test_calls_of_one_moment_go_together_and_end_in_few_lists() -> None:
    handle = Handle()
    stream = Stream(handle)
    found = await asyncio.gather(*(ids(stream, first, 4) for first in range(0, 40, 4)))
    assert [sorted(each) for each in found] == [[*range(n, n + 4)] for n in range(0, 40, 4)]
    assert [number for calls in handle.calls for number in calls] == [*range(10)]
    assert len(handle.calls) <= 2
    parts = [part for each in handle.lists for part in each]
    assert sum(len(part) for _, part in parts if isinstance(part, list)) == 40
    assert len(handle.lists) < 20
    stream.close()


async def test_results_come_in_the_order_of_their_end_and_the_state_comes_last() -> None:
    handle = Handle(tells_state=True, in_flight=4)
    stream = Stream(handle)
    found: list[Any] = [part async for part in stream.play(specs(20), None)]
    assert isinstance(found[-1], ActorState)
    alone = [result async for result in collector(Scripted(lambda: 2), 4).play(specs(20))]
    assert [result.spec for part in found[:-1] for result in part] == [r.spec for r in alone]
    assert found[-1].training_games == 20
    stream.close()


async def test_the_last_result_does_not_wait_for_the_pace() -> None:
    handle = Handle()
    stream = Stream(handle)
    await ids(stream, 0, 1)
    await asyncio.sleep(2 * EVERY_S)
    began = asyncio.get_running_loop().time()
    for _ in range(3):
        await asyncio.sleep(EVERY_S)
        await ids(stream, 0, 1)
    assert asyncio.get_running_loop().time() - began < 3 * EVERY_S + 3 * EVERY_S
    stream.close()


async def test_a_call_that_is_left_ends_its_games_and_no_other() -> None:
    handle = Handle(in_flight=64)
    stream = Stream(handle)
    other = asyncio.create_task(ids(stream, 100, 30))
    async with aclosing(stream.play(specs(50), None)) as plays:  # type: ignore[type-var]
        async for _ in plays:
            break
    assert sorted(await other) == [*range(100, 130)]
    await asyncio.sleep(2 * EVERY_S)
    assert handle.collector.stats()["games_in_flight"] == 0
    stream.close()


async def test_a_dead_process_raises_in_all_its_calls_and_in_later_ones() -> None:
    handle = Handle()
    stream = Stream(handle)
    handle.dies.set()
    calls = [asyncio.create_task(ids(stream, 0, 9)) for _ in range(3)]
    for call in calls:
        with pytest.raises(RayActorError):
            await call
    with pytest.raises(RayActorError):
        await ids(stream, 0, 1)
    stream.close()


async def test_what_play_raises_is_raised_where_it_was_called() -> None:
    handle = Handle()
    stream = Stream(handle)

    async def broken(*_: Any) -> AsyncIterator[list[GameResult]]:
        raise LookupError("no such thing")
        yield []

    handle.collector.play_together = broken  # type: ignore[method-assign,assignment]
    with pytest.raises(RuntimeError, match="LookupError: no such thing"):
        await ids(stream, 0, 1)
    stream.close()
