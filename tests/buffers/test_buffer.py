"""Invariants 5 and 7: whole groups, bounded, and never more stale than allowed."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.builders import game, packed, spec
from unstable.buffers.buffer import Buffer
from unstable.config import RewardConfig
from unstable.rewards.terms import Rewards
from unstable.types import PackedBatch

REWARDS = Rewards([RewardConfig()])


def add(buffer: Buffer, game_id: int, version: int = 0, turns: int = 4) -> None:
    result = game((f"main@{version}", "random"), game_id=game_id, turns=turns)
    buffer.add(result.spec, packed(REWARDS.trajectories(result)))


def sample_games(batch: PackedBatch) -> list[int]:
    """The game of each sample, in the batch's order."""
    return [each.game_id for each in batch.opened().trajectories for _ in each.samples]


def test_batch_takes_oldest_whole_groups_up_to_its_size() -> None:
    buffer = Buffer(capacity=100, batch_size=5, max_staleness=4)
    for game_id in range(4):
        add(buffer, game_id)  # two samples each
    batch = buffer.draw(version=0)
    assert batch is not None
    assert sample_games(batch) == [0, 0, 1, 1, 2, 2]
    assert buffer.size == 2
    assert buffer.draw(version=0) is None


def test_draw_drops_and_counts_stale_groups() -> None:
    buffer = Buffer(capacity=100, batch_size=2, max_staleness=2)
    add(buffer, game_id=0, version=0)
    add(buffer, game_id=1, version=1)
    assert buffer.ready(version=3) == 2
    batch = buffer.draw(version=3)
    assert batch is not None
    opened = batch.opened()
    assert {sample.version for sample in opened.samples} == {1}
    assert [opened.staleness(sample) for sample in opened.samples] == [2, 2]
    assert buffer.dropped.stale == 2


def test_full_buffer_drops_oldest_group_but_keeps_a_batch() -> None:
    buffer = Buffer(capacity=4, batch_size=2, max_staleness=4)
    for game_id in range(3):
        add(buffer, game_id)
    assert (buffer.size, buffer.dropped.capacity) == (4, 2)
    batch = buffer.draw(version=0)
    assert batch is not None
    assert set(sample_games(batch)) == {1}
    # Dropping must leave enough samples for a batch at any group size.
    buffer = Buffer(capacity=128, batch_size=128, max_staleness=0)
    for game_id in range(100):
        add(buffer, game_id, turns=5)  # three samples each
    assert buffer.size >= 128
    assert buffer.draw(version=0) is not None


def test_group_waits_for_its_last_member() -> None:
    buffer = Buffer(capacity=100, batch_size=1, max_staleness=4)
    for game_id in range(2):
        result = game(game_id=game_id, group_ids=[7, 8], group_size=2)
        assert buffer.draw(version=0) is None
        buffer.add(result.spec, packed(REWARDS.trajectories(result)))
    batch = buffer.draw(version=0)
    assert batch is not None
    assert sample_games(batch) == [0, 0, 1, 1]
    (group,) = batch.groups
    assert [trajectory.group_id for trajectory in group] == [7, 7]


@settings(max_examples=40)
@given(
    games=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 6)), max_size=30),
    batch_size=st.integers(1, 12),
    capacity=st.integers(12, 40),
)
def test_every_sample_is_drawn_dropped_or_held(games, batch_size, capacity):
    """Every added sample leaves in a batch, is counted as dropped, or is still in the buffer."""
    buffer = Buffer(capacity, batch_size, max_staleness=2)
    came = drawn = 0
    for game_id, (turns, version) in enumerate(games):
        add(buffer, game_id, version, turns)
        came += (turns + 1) // 2
        assert buffer.size < capacity + 5
    while (batch := buffer.draw(version=6)) is not None:
        opened = batch.opened()
        drawn += len(opened.samples)
        assert len(opened.samples) == batch.num_samples >= batch_size
        assert all((opened.staleness(sample) or 0) <= 2 for sample in opened.samples)
        for group in opened.groups:
            (trajectory,) = group.trajectories
            turns = games[trajectory.group_id // 100][0]
            assert len(trajectory.samples) == (turns + 1) // 2
    assert came == drawn + buffer.size + buffer.dropped.stale + buffer.dropped.capacity


def test_self_play_seats_have_separate_groups() -> None:
    result = game(("main@0", "main@0"))
    trajectories = REWARDS.trajectories(result)
    assert [t.group_id for t in trajectories] == [s.group_id for s in result.spec.seats]
    assert spec(("main@0", "main@0")).seats[0].group_id != result.spec.seats[1].group_id
