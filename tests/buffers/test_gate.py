"""The gate of asynchronous play: what begins has room, in the order of asking."""

import asyncio
import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.builders import game, packed
from unstable.buffers.buffer import Buffer
from unstable.buffers.gate import Gate
from unstable.config import RewardConfig
from unstable.rewards.terms import Rewards

REWARDS = Rewards([RewardConfig()])


class Play:
    """Places that play one group after another; a test ends the games that it wants."""

    def __init__(self, places: int, **buffer: int) -> None:
        self.buffer = Buffer(**{"max_staleness": 4, **buffer})
        self.gate = Gate(self.buffer)
        self.version = 0
        self.begun: dict[int, None] = {}  # games, in order
        self._number = 0
        self._tasks = [asyncio.create_task(self._enter(place)) for place in range(places)]

    async def _enter(self, place: int) -> None:
        await self.gate.enter(self.version)
        self._number += 1
        self.begun[self._number] = None

    async def end(self, number: int, turns: int) -> None:
        """End a game, and request to begin another in its place."""
        del self.begun[number]
        played = game((f"main@{self.version}", "random"), game_id=number, turns=turns)
        trajectories = REWARDS.trajectories(played)
        self.buffer.add(played.spec, packed(trajectories))
        self.gate.leave(self.version, sum(len(each.samples) for each in trajectories))
        self._tasks.append(asyncio.create_task(self._enter(number)))
        await self.settle()

    async def settle(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()


async def test_open_gate_admits_only_groups_that_fit() -> None:
    play = Play(2688, capacity=40, batch_size=20)
    await play.settle()
    assert len(play.begun) == 40  # expected at one sample each
    for number in range(1, 11):
        await play.end(number, turns=8)  # four samples
    assert play.gate.filled.is_set() and play.buffer.ready(0) == 40
    for number in list(play.begun):
        await play.end(number, turns=8)
    assert not play.begun and play.buffer.dropped.capacity > 0  # of groups admitted too early
    dropped = play.buffer.dropped.capacity
    for version in range(20):
        play.version = version
        assert play.buffer.draw(version) is not None
        play.gate.look(version)
        await play.settle()
        assert len(play.begun) == 5  # of four samples each, plus the 20 ready ones
        for number in list(play.begun):
            await play.end(number, turns=8)
    assert play.buffer.dropped.capacity == dropped
    play.close()


async def test_gate_closes_at_two_ready_batches() -> None:
    play = Play(100, capacity=1000, batch_size=4, max_staleness=1000)
    await play.settle()
    for number in range(1, 5):
        assert len(play.begun) == 100
        await play.end(number, turns=4)
    assert play.buffer.ready(0) == 8 and len(play.begun) == 99
    assert play.buffer.draw(0) is not None
    play.gate.look(0)
    await play.settle()
    assert len(play.begun) == 100
    play.close()


async def settle() -> None:
    """Let every task get as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_gate_admits_in_order_and_skips_canceled_waiters() -> None:
    gate = Gate(Buffer(capacity=2, batch_size=2, max_staleness=0))
    begun: list[int] = []

    async def enter(place: int) -> None:
        await gate.enter(0)
        begun.append(place)

    tasks = [asyncio.create_task(enter(place)) for place in range(6)]
    await settle()
    assert begun == [0, 1]
    tasks[2].cancel()
    await settle()
    gate.leave(0, 1)
    gate.leave(0, 1)
    await settle()
    assert begun == [0, 1, 3, 4]
    tasks[5].cancel()


@settings(deadline=None, max_examples=25)
@given(
    batch=st.integers(1, 20),
    batches=st.integers(1, 5),
    places=st.integers(1, 60),
    seed=st.integers(0, 2**16),
)
def test_gate_never_deadlocks(batch, batches, places, seed):
    """A batch fills even if games give no sample, or more than the buffer holds."""

    async def check() -> None:
        chance = random.Random(seed)
        play = Play(places, capacity=batch * batches, batch_size=batch, max_staleness=batches - 1)
        await play.settle()
        for _ in range(12):
            while not play.gate.filled.is_set():
                number = chance.choice(list(play.begun))
                await play.end(number, turns=chance.choice([1, 2, 4, 9, 100]))
            assert play.buffer.draw(play.version) is not None
            play.version += 1
            play.gate.look(play.version)
            await play.settle()
        play.close()

    asyncio.run(check())


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9)), max_size=30), st.integers(0, 4))
def test_ready_counts_fresh_samples(games: list[tuple[int, int]], staleness: int) -> None:
    buffer = Buffer(capacity=10_000, batch_size=1, max_staleness=staleness)
    for number, (version, turns) in enumerate(games):
        played = game((f"main@{version}", "random"), game_id=number, turns=turns)
        buffer.add(played.spec, packed(REWARDS.trajectories(played)))
    fresh = sum((turns + 1) // 2 for version, turns in games if 6 - version <= staleness)
    assert buffer.ready(6) == fresh
    drawn = 0
    while batch := buffer.draw(6):
        drawn += batch.num_samples
    assert drawn == fresh and buffer.ready(6) == 0
