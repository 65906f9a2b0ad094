from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.helpers.learners import Made, make_batch, make_sample
from tests.helpers.rows import every_row
from unstable.learners.advantages import (
    RoleBaseline,
    deviation_by,
    group_advantages,
    group_relative,
    leave_one_out,
    normalize_by_env,
    spread_weights,
)
from unstable.learners.batch import FlatBatch
from unstable.types import Batch, Group

ROLES = st.sampled_from([("a", 0), ("a", 1), ("b", 0)])
ROWS = st.lists(
    st.tuples(st.floats(-5, 5), ROLES, st.integers(0, 3)), min_size=1, max_size=20
)  # reward, role, game


def batch_of(rows):
    """Make a batch of the rows, in which a game and role form a trajectory."""
    roles = sorted({role for _, role, _ in rows})
    trajectories: dict[Any, list[Made]] = {}
    for reward, role, game in rows:
        # Game ids differ between envs.
        place = {"game_id": 10 * (role[0] == "b") + game, "env": role[0], "seat": role[1]}
        sample = make_sample([1], [2], reward, **place, group_id=roles.index(role))
        trajectories.setdefault((role, game), []).append(sample)
    return make_batch([sample for samples in trajectories.values() for sample in samples])


def baseline_advantages(baseline, rows):
    """The samples' advantages, in the order of the batch."""
    batch = FlatBatch(batch_of(rows))
    return baseline.advantages(batch, batch.rewards_S)


def shuffled(batch, random):
    """Shuffle a batch's groups, trajectories and samples.

    Also returns each sample's index in the original batch.
    """

    def mixed(values):
        return tuple(random.sample(values, len(values)))

    groups = [
        Group(
            trajectories=mixed(
                [replace(each, samples=mixed(each.samples)) for each in group.trajectories]
            )
        )
        for group in batch.groups
    ]
    found = Batch(version=batch.version, groups=mixed(groups))
    places = {id(sample): place for place, sample in enumerate(batch.samples)}
    return found, [places[id(sample)] for sample in found.samples]


def test_baseline_by_hand():
    baseline = RoleBaseline(decay=0.5)
    first = baseline_advantages(
        baseline,
        # Game 0 has two turns of seat 0, which count as one game of reward 0.5.
        [(1.0, ("a", 0), 0), (0.0, ("a", 0), 0), (1.5, ("a", 0), 1), (-1.0, ("a", 1), 0)],
    )
    assert first.tolist() == [1.0, 0.0, 1.5, -1.0]  # the baseline is still 0
    # Seat 0: two games of mean 1.0, decay 0.25. Seat 1: one game of -1, decay 0.5.
    assert baseline.values == {("a", 0): 0.75, ("a", 1): -0.5}
    second = baseline_advantages(baseline, [(1.0, ("a", 0), 2), (1.0, ("b", 0), 3)])
    assert second.tolist() == [0.25, 1.0]
    assert baseline.values[("a", 0)] == 0.875
    assert baseline.values[("b", 0)] == 0.5


def test_baseline_state_round_trips():
    baseline = RoleBaseline(decay=0.9)
    baseline_advantages(baseline, [(1.0, ("a", 0), 0)])
    state = baseline.state_dict()
    copy = RoleBaseline(decay=0.9)
    copy.load_state_dict(state)
    rows = [(2.0, ("a", 0), 1)]
    assert baseline_advantages(copy, rows) == baseline_advantages(baseline, rows)
    assert state == {("a", 0): pytest.approx(0.1)}  # a copy, not affected by later updates


def test_normalize_by_hand():
    values = np.array([1.0, 3.0, 10.0, 5.0])
    envs = ["a", "a", "b", "a"]
    assert normalize_by_env(values, envs, "none").tolist() == [1.0, 3.0, 10.0, 5.0]
    assert normalize_by_env(values, envs, "center").tolist() == [-2.0, 0.0, 0.0, 2.0]
    deviation = (8 / 3) ** 0.5
    assert normalize_by_env(values, envs, "zscore") == pytest.approx(
        [-2 / deviation, 0.0, 0.0, 2 / deviation]
    )


def test_envs_are_weighted_by_their_reward_spread():
    """An env whose seats always earn the same counts 0, even if seats differ."""
    roles = [("a", 0), ("a", 0), ("a", 1), ("b", 0), ("b", 0), ("c", 0), ("c", 1)]
    rewards = np.array([1.0, -1.0, 0.5, 0.25, -0.25, 9.0, -9.0])
    found = spread_weights(rewards, roles)
    assert found == {"a": 1.0, "b": 0.5, "c": 0.0}  # spreads: (1 + 0) / 2, 0.25, 0
    assert spread_weights(100 * rewards, roles) == found
    assert spread_weights(np.array([3.0, 3.0]), roles[:2]) == {"a": 1.0}


@every_row("mode", "center", "zscore")
@every_row("size", 1, 3, 10)
def test_equal_rewards_give_exact_zeros(mode, size):
    # Ten times 0.1 has a mean that is not 0.1.
    assert normalize_by_env(np.full(size, 0.1), ["a"] * size, mode).tolist() == [0.0] * size


@given(ROWS, st.randoms(use_true_random=False), st.sampled_from(["none", "center", "zscore"]))
def test_permuting_the_samples_permutes_the_advantages(rows, random, mode):
    batch = batch_of(rows)
    other, order = shuffled(batch, random)

    def advantages(baseline, given):
        flat = FlatBatch(given)
        return normalize_by_env(baseline.advantages(flat, flat.rewards_S), flat.envs_S, mode)

    baseline, other_baseline = RoleBaseline(0.95), RoleBaseline(0.95)
    expected = advantages(baseline, batch)
    assert np.isfinite(expected).all()
    permuted = advantages(other_baseline, other)
    assert permuted == pytest.approx(expected[order], rel=1e-9, abs=1e-9)
    assert baseline.values == other_baseline.values


def test_group_relative_by_hand():
    rewards = np.array([1.0, 0.0, 0.0, 1.0, 4.0, 4.0, 9.0])
    groups = [0, 0, 0, 0, 1, 1, 2]
    envs = ["a"] * 4 + ["b"] * 3
    centered = [0.5, -0.5, -0.5, 0.5, 0.0, 0.0, 0.0]
    assert group_relative(rewards, groups, envs, "none").tolist() == centered
    assert group_relative(rewards, groups, envs, "group").tolist() == [2 * x for x in centered]
    by_batch = group_relative(rewards, groups, ["a"] * 7, "batch")
    assert by_batch == pytest.approx(np.array(centered) / rewards.std())
    assert group_relative(rewards, groups, envs, "batch") == pytest.approx(2 * np.array(centered))


def test_rounding_is_not_deviation_and_trajectory_counts_once():
    found = deviation_by(np.array([1.0, 1.0 + 1e-15, 3.0, 5.0]), [0, 0, 1, 1])
    assert found.tolist() == [1e-6, 1e-6, 1.0, 1.0]
    # Game 0 has three turns of 0.1, whose naive mean would differ from game 1's by rounding.
    samples = [make_sample([1], [2], 0.1, game_id=game, group_id=4) for game in (0, 0, 0, 1)]
    samples += [make_sample([1], [2], 0.7, game_id=0, seat=1, group_id=5)]

    batch = FlatBatch(make_batch(samples))
    assert batch.mean_T(batch.rewards_S).tolist() == [0.1, 0.1, 0.7]
    assert batch.groups_T == [4, 4, 5]
    assert batch.trajectories_S.tolist() == [0, 0, 0, 1, 2]


def test_samples_have_the_fields_of_their_trajectory():
    samples = [
        make_sample([1], [2], 0.5, game_id=3, env="b", group_id=7, outcome=1.0, logprobs=[-0.5]),
        make_sample([1, 4], [2, 3], game_id=2, env="a", seat=1, group_id=8, forfeit=True),
        make_sample([1, 5], [2], game_id=2, env="a", seat=1, group_id=8, forfeit=True),
        make_sample([1], [3], game_id=4, env="b", group_id=7),  # in the first sample's group
    ]
    batch = FlatBatch(make_batch(samples))
    assert batch.envs_T == ["b", "b", "a"]
    assert batch.envs_S == ["b", "b", "a", "a"]
    assert batch.roles_S == [("b", 0), ("b", 0), ("a", 1), ("a", 1)]
    owners = [(owner.game_id, owner.forfeit) for owner in batch.owners_S]
    assert owners == [(3, False), (4, False), (2, True), (2, True)]
    by_role = {role: places.tolist() for role, places in batch.by_role().items()}
    assert by_role == {("a", 1): [2, 3], ("b", 0): [0, 1]}
    assert batch.rewards_S.tolist() == [0.5, 1.0, 1.0, 1.0]
    behavior = [logprobs.tolist() for logprobs in batch.behavior_logprobs]
    assert behavior == [[-0.5], [-1.0], [-1.0, -1.0], [-1.0]]

    assert [tokens.prompt_ids for tokens in batch.token_samples] == [[1], [1], [1, 4], [1, 5]]


@given(
    st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 5), st.integers(0, 1)), min_size=1),
    st.randoms(use_true_random=False),
    st.sampled_from(["none", "group", "batch"]),
)
def test_permuting_the_samples_permutes_group_advantages(rows, random, scale):
    samples = [
        make_sample([1], [2], reward, game_id=game, seat=seat, group_id=2 * (game % 2) + seat)
        for reward, game, seat in rows
    ]
    batch = make_batch(samples)
    other, order = shuffled(batch, random)
    flat, permuted = FlatBatch(batch), FlatBatch(other)
    advantages = group_advantages(flat, flat.rewards_S, scale)
    assert np.isfinite(advantages).all()
    found = group_advantages(permuted, permuted.rewards_S, scale)
    assert found == pytest.approx(advantages[order], rel=1e-6, abs=1e-6)
    of_first = np.searchsorted(flat.trajectories_S, flat.trajectories_S)  # first turns
    assert advantages.tolist() == advantages[of_first].tolist()


@given(st.lists(st.tuples(st.floats(-5, 5), st.integers(0, 3)), min_size=1))
def test_leave_one_out_equals_its_definition(rows):
    rewards, groups = np.array([r for r, _ in rows]), [g for _, g in rows]
    for i, advantage in enumerate(leave_one_out(rewards, groups)):
        others = [r for j, (r, g) in enumerate(rows) if g == groups[i] and j != i]
        expected = rewards[i] - sum(others) / len(others) if others else 0.0
        assert advantage == pytest.approx(expected, abs=1e-9)
