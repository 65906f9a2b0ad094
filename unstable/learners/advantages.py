"""Advantages: pure functions of a batch's rewards, computed on whole groups before any shuffle."""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np

from unstable.learners.batch import FlatBatch, Floats, Ints, Role, role_suffix

MIN_DEVIATION = 1e-6
"""Smallest deviation that advantages are divided by."""


class RoleBaseline:
    """A running mean of the reward of each (env, seat), subtracted from the rewards.

    Role-conditioned advantage estimation of SPIRAL, https://arxiv.org/abs/2506.24119: seats win
    more or less often, so each has a baseline of its own. It starts at 0 and decays once per game.
    Here a batch is read as a whole before it moves the baseline, so that the order of its samples
    does not matter; n games move it by what n games of their mean reward would.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.values: dict[Role, float] = {}

    def advantages(self, batch: FlatBatch, rewards_S: Floats) -> Floats:
        """Rewards [S] minus the baselines of their roles, and move these towards the rewards.

        A game counts once for a role, by the mean over its turns.
        """
        roles = batch.roles_S
        advantages_S = rewards_S - np.array([self.values.get(role, 0.0) for role in roles])
        rewards: dict[Role, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for reward, role, owner in zip(rewards_S.tolist(), roles, batch.owners_S, strict=True):
            rewards[role][owner.game_id].append(reward)
        for role, by_game in rewards.items():
            means = [math.fsum(turns) / len(turns) for turns in by_game.values()]
            kept = self.decay ** len(means)
            average = math.fsum(means) / len(means)
            self.values[role] = kept * self.values.get(role, 0.0) + (1 - kept) * average
        return advantages_S

    def metrics(self) -> dict[str, float | None]:
        """The baseline of each role, as metrics."""
        return {f"learn/baseline{role_suffix(role)}": value for role, value in self.values.items()}

    def state_dict(self) -> dict[Role, float]:
        """Return the state that a checkpoint saves."""
        return dict(self.values)

    def load_state_dict(self, state: dict[Role, float]) -> None:
        """Restore a state that `state_dict` returned."""
        self.values = dict(state)


def group_advantages(
    batch: FlatBatch, rewards_S: Floats, scale: Literal["none", "group", "batch"]
) -> Floats:
    """For each sample [S] the group-relative reward of its trajectory."""
    rewards_T = batch.mean_T(rewards_S)
    advantages_T = group_relative(rewards_T, batch.groups_T, batch.envs_T, scale)
    return advantages_T[batch.trajectories_S]


def group_relative(
    rewards_T: Floats,
    groups_T: Sequence[int],
    envs_T: Sequence[str],
    scale: Literal["none", "group", "batch"],
) -> Floats:
    """Subtract the group's mean from rewards [T]; divide by a population deviation, if any.

    `scale` chooses the deviation of the group's rewards, or of the batch's rewards in the env. A
    tied group and a trajectory that is alone in its group get 0.
    """
    centered_T = center_by(rewards_T, groups_T)
    if scale == "none":
        return centered_T
    return centered_T / deviation_by(rewards_T, groups_T if scale == "group" else envs_T)


def leave_one_out(rewards_T: Floats, groups_T: Sequence[int]) -> Floats:
    """Rewards [T] minus the mean of the others of their group: G / (G - 1) * (reward - mean).

    Alone in its group a trajectory gets 0, as there is nothing to compare it with.
    """
    sizes_T = group_sizes(groups_T)
    return center_by(rewards_T, groups_T) * sizes_T / np.maximum(sizes_T - 1, 1)


def generalized_advantages(
    rewards_S: Floats,
    values_S: Floats,
    trajectories_S: Ints,
    turns_S: Sequence[int],
    *,
    gamma: float,
    decay: float,
) -> Floats:
    """Compute generalized advantages [S] along each trajectory's turns, in any order of samples.

    A = sum over k of (gamma * decay)^k * (reward + gamma * next value - value), k turns later; the
    value after the last turn is 0. GAE of Schulman et al., https://arxiv.org/abs/1506.02438, whose
    lambda is `decay`: 0 is the one-step error, 1 the return minus the value.
    """
    rewards, values, owners = rewards_S.tolist(), values_S.tolist(), trajectories_S.tolist()
    advantages = [0.0] * len(rewards)
    next_value, next_advantage = (dict.fromkeys(owners, 0.0) for _ in range(2))
    for index in sorted(range(len(turns_S)), key=lambda index: -turns_S[index]):
        owner = owners[index]
        error = rewards[index] + gamma * next_value[owner] - values[index]
        advantages[index] = error + gamma * decay * next_advantage[owner]
        next_value[owner], next_advantage[owner] = values[index], advantages[index]
    return np.array(advantages)


def explained_variance(values_S: Floats, residuals_S: Floats) -> float | None:
    """Share of the variance of values + residuals that the values explain; below 0 they mislead.

    None if the returns do not vary.
    """
    variance = float((values_S + residuals_S).var())
    return 1 - float(residuals_S.var()) / variance if variance > 0 else None


def group_sizes(groups_T: Sequence[int]) -> Floats:
    """Count the trajectories of each one's group [T]."""
    sizes = Counter(groups_T)
    return np.array([float(sizes[group]) for group in groups_T])


def center_by(values: Floats, keys: Sequence[Hashable]) -> Floats:
    """Each value minus the mean of those with its key; exact zeros where they are all equal."""
    centered = np.zeros_like(values)
    for indices in _indices(keys):
        group = values[indices]
        # Compared, not subtracted: the mean of equal numbers may differ from them by rounding.
        if group.min() < group.max():
            centered[indices] = group - math.fsum(group) / len(group)
    return centered


def deviation_by(values: Floats, keys: Sequence[Hashable]) -> Floats:
    """The population standard deviation of the values with each one's key; at least a millionth.

    Smaller deviations are rounding, which a division would amplify.
    """
    deviations = np.empty_like(values)
    for indices in _indices(keys):
        deviations[indices] = max(float(values[indices].std()), MIN_DEVIATION)
    return deviations


def spread_weights(rewards_S: Floats, roles_S: Sequence[tuple[str, int]]) -> dict[str, float]:
    """Compute each env's weight from the spread of its rewards [S]; the largest is 1.

    An env's spread is the standard deviation of the rewards of a seat, the mean over its seats. All
    count 1 where no rewards differ.
    """
    by_env: dict[str, list[float]] = defaultdict(list)
    for indices in _indices(roles_S):
        by_env[roles_S[indices[0]][0]].append(float(rewards_S[indices].std()))
    spreads = {env: sum(found) / len(found) for env, found in by_env.items()}
    most = max(spreads.values(), default=0.0)
    return {env: 1.0 if most < MIN_DEVIATION else each / most for env, each in spreads.items()}


def normalize_by_env(
    advantages_S: Floats, envs: Sequence[str], mode: Literal["none", "center", "zscore"]
) -> Floats:
    """Normalize advantages [S] by env: not at all, by its mean, or by mean and deviation.

    An env whose advantages are all equal gets zeros, in both of the latter modes.
    """
    if mode == "none":
        return advantages_S.copy()
    centered_S = center_by(advantages_S, envs)
    return centered_S / deviation_by(advantages_S, envs) if mode == "zscore" else centered_S


def _indices(keys: Sequence[Hashable]) -> list[list[int]]:
    """Indices that have the same key, key by key."""
    indices: dict[Hashable, list[int]] = defaultdict(list)
    for index, key in enumerate(keys):
        indices[key].append(index)
    return list(indices.values())
