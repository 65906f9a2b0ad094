"""Calls of `play` are sent to a process in batches; results return in lists, in order."""

import asyncio
import pickle
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from ray.exceptions import ObjectLostError, RayActorError

from tests.helpers.collector import Scripted, collector, specs
from unstable.collectors.collector import Collector
from unstable.config import RewardConfig
from unstable.loop.ended import Ended
from unstable.rewards.terms import Rewards
from unstable.runtime.cluster import LOST
from unstable.runtime.playing import Playing
from unstable.runtime.stream import EVERY_S, Part, Results, Stream
from unstable.types import ActorState, PackedTrajectory, PlayedGame


class Scored:
    """A collector with a scripted engine, and one reward term."""

    def __init__(self, made: Collector) -> None:
        self.collector = made
        self.deal = made.deal
        self.judged = Rewards([RewardConfig()]).judge


class Handle:
    """Stand-in for Ray's handle of a process, within this one; records each message."""

    def __init__(self, *, tells_state: bool = False, in_flight: int = 16) -> None:
        self.collector = collector(Scripted(lambda: 2), in_flight)
        scored: Any = Scored(self.collector)
        playing = Playing(lambda: scored, tells_state=tells_state)
        self.calls: list[list[int]] = []
        self.dealt: list[int] = []
        self.lists: list[list[Part]] = []
        self.dies, self.loses = asyncio.Event(), asyncio.Event()

        def begin(asked: bytes) -> None:
            calls, dealt = pickle.loads(asked)
            self.calls.append([call.number for call in calls])
            self.dealt.append(len(dealt))
            playing.begin(asked, nullcontext)

        async def ended() -> AsyncIterator[Any]:
            async for parts in playing.ended():
                if self.dies.is_set():
                    raise RayActorError
                self.lists.append(parts)
                future = asyncio.get_running_loop().create_future()
                if self.loses.is_set():
                    future.set_exception(ObjectLostError("0" * 56, None, ""))
                else:
                    future.set_result(pickle.loads(pickle.dumps(parts)))
                yield future

        self.begin = SimpleNamespace(remote=begin)
        self.stop = SimpleNamespace(remote=playing.stop)
        self.ended = SimpleNamespace(remote=ended)


async def ids(stream: Stream, first: int, count: int) -> list[int]:
    found = []
    made = [spec for spec in specs(first + count) if spec.game_id >= first]
    async for results in stream.play(made, whole=True):
        assert isinstance(results, list)
        found += [result.spec.game_id for result in results]
    return found


def bare(game: PlayedGame) -> PlayedGame:
    return replace(game, line=b"", trajectories=[])


def ended_of(part: Results | Ended | ActorState) -> Ended:
    assert isinstance(part, Ended)
    return part


async def test_simultaneous_calls_are_batched() -> None:
    handle = Handle()
    stream = Stream(handle)
    found = await asyncio.gather(*(ids(stream, first, 4) for first in range(0, 40, 4)))
    assert [sorted(each) for each in found] == [[*range(n, n + 4)] for n in range(0, 40, 4)]
    assert [number for calls in handle.calls for number in calls] == [*range(1, 11)]
    assert len(handle.calls) <= 2
    parts = [part for each in handle.lists for part in each]
    assert sum(len(part) for _, part in parts if type(part) is list) == 40
    assert len(handle.lists) < 20
    stream.close()


async def test_results_arrive_in_order_and_the_state_last() -> None:
    stream, made = Stream(Handle(tells_state=True, in_flight=4)), specs(20)
    *parts, state = [part async for part in stream.play(made)]
    assert isinstance(state, ActorState) and state.training_games == 20
    lists = [ended_of(part) for part in parts]
    finished = [each for ended in lists for each in ended.finished]
    own = collector(Scripted(lambda: 2), 4).play_together(made)
    alone = [Ended.of(judged) async for judged in Rewards([RewardConfig()]).judge(own)]
    expected = [each for ended in alone for each in ended.finished]
    assert [each.spec for each in finished] == [each.spec for each in expected]
    for ours, theirs in zip(finished, expected, strict=True):
        assert bare(ours) == bare(theirs)
        assert opened(ours.trajectories) == opened(theirs.trajectories)
    counts: Counter[str] = Counter()
    for each in lists:
        counts.update(each.play.counts)
    assert counts["collect/games"] == 20
    assert counts["collect/versus/self/games"] == 40
    stream.close()


def opened(trajectories: Sequence[PackedTrajectory]) -> list[Any]:
    return [each.opened() for each in trajectories]


async def test_dealt_games_are_played_and_given_games_are_skipped() -> None:
    handle = Handle(in_flight=8)
    stream, made = Stream(handle), specs(60)
    found: list[int] = []
    async with aclosing(stream.play_on()) as parts:
        stream.deal(made[:30])
        async for part in parts:
            found += [each.spec.game_id for each in ended_of(part).games]
            if len(found) == 30 and len(handle.dealt) == 1:
                stream.deal(made[30:45])
                stream.deal(made[45:])
            if len(found) == 60:
                break
    assert sorted(found) == [*range(60)] and handle.dealt == [30, 30]
    again = [part async for part in stream.play(made, given=range(50))]
    games = [each.spec.game_id for part in again for each in ended_of(part).games]
    assert sorted(games) == [*range(50, 60)]
    stream.close()


async def test_dealt_games_stop_if_nobody_reads_them() -> None:
    handle = Handle(in_flight=8)
    stream = Stream(handle)
    stream.deal(specs(300))
    async with aclosing(stream.play_on()) as parts:
        async for _ in parts:
            break
    stream.deal(specs(1))  # for the next call
    await asyncio.sleep(2 * EVERY_S)
    assert handle.collector.stats()["games_in_flight"] == 0 or handle.dealt == [300, 1]
    assert handle.collector.stats()["games"] < 300
    stream.close()


async def test_last_result_is_sent_without_delay() -> None:
    stream = Stream(Handle())
    await ids(stream, 0, 1)
    await asyncio.sleep(2 * EVERY_S)
    began = asyncio.get_running_loop().time()
    for _ in range(3):
        await asyncio.sleep(EVERY_S)
        await ids(stream, 0, 1)
    assert asyncio.get_running_loop().time() - began < 3 * EVERY_S + 3 * EVERY_S
    stream.close()


async def test_abandoned_call_stops_only_its_own_games() -> None:
    handle = Handle(in_flight=64)
    stream = Stream(handle)
    other = asyncio.create_task(ids(stream, 100, 30))
    async with aclosing(stream.play(specs(50))) as plays:
        async for _ in plays:
            break
    assert sorted(await other) == [*range(100, 130)]
    await asyncio.sleep(2 * EVERY_S)
    assert handle.collector.stats()["games_in_flight"] == 0
    stream.close()


@pytest.mark.parametrize("event", ["dies", "loses"])
async def test_dead_process_and_lost_results_raise_in_all_calls(event: str) -> None:
    handle = Handle()
    stream = Stream(handle)
    getattr(handle, event).set()
    calls = [asyncio.create_task(ids(stream, 0, 9)) for _ in range(3)]
    for call in calls:
        with pytest.raises(LOST):
            await call
    with pytest.raises(LOST):
        await ids(stream, 0, 1)
    stream.close()


async def test_error_of_play_is_raised_in_the_caller() -> None:
    handle = Handle()
    stream = Stream(handle)

    async def broken(*_: Any) -> AsyncGenerator[Results]:
        raise LookupError("broken")
        yield []

    handle.collector.play_together = broken  # type: ignore[method-assign,assignment]
    with pytest.raises(RuntimeError, match="LookupError: broken"):
        await ids(stream, 0, 1)
    stream.close()
