"""Advantages: pure functions of a batch's rewards, computed on whole groups before any shuffle."""

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from unstable.types import Sample

Role = tuple[str, int]
"""An env and a seat in it."""

Floats = NDArray[np.float64]

OUTCOME = "outcome"
"""The reward term that is the seat's outcome of its game, the same on all of its turns."""

MIN_DEVIATION = 1e-6
"""Smallest deviation that advantages are divided by."""


def role_suffix(role: Role) -> str:
    """What ends the name of a metric that is told for each role; an env's name has no slash there.

    >>> role_suffix(("some/env", 1))
    '/some:env/1'
    """
    env, seat = role
    return f"/{env.replace('/', ':')}/{seat}"


class RoleBaseline:
    """A running mean of the reward of each (env, seat), subtracted from the rewards.

    Role-conditioned advantage estimation of SPIRAL, https://arxiv.org/abs/2506.24119: seats differ
    in their chances, so each has a baseline of its own. It starts at 0 and decays once per game.
    Here a batch is read as a whole before it moves the baseline, so that the order of its samples
    does not matter; n games move it by what n games of their mean reward would.
    """

    def __init__(self, decay: float) -> None:
        self.decay = decay
        self.values: dict[Role, float] = {}

    def advantages(self, rewards_S: Floats, roles: Sequence[Role], games: Sequence[int]) -> Floats:
        """Rewards [S] minus the baselines of their roles, which then move towards the rewards.

        `games` tells which samples are turns of one game: these count as one, by their mean.
        """
        advantages_S = rewards_S - np.array([self.values.get(role, 0.0) for role in roles])
        rewards: dict[Role, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
        for reward, role, game in zip(rewards_S.tolist(), roles, games, strict=True):
            rewards[role][game].append(reward)
        for role, by_game in rewards.items():
            means = [math.fsum(turns) / len(turns) for turns in by_game.values()]
            kept = self.decay ** len(means)
            average = math.fsum(means) / len(means)
            self.values[role] = kept * self.values.get(role, 0.0) + (1 - kept) * average
        return advantages_S

    def state_dict(self) -> dict[Role, float]:
        """All that a resume needs."""
        return dict(self.values)

    def load_state_dict(self, state: dict[Role, float]) -> None:
        """Restore what `state_dict` gave."""
        self.values = dict(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryTable:
    """A batch by trajectory: what a group compares is a seat's whole game, not one turn of it."""

    rewards_T: Floats  # mean over the trajectory's turns
    groups_T: list[int]
    envs_T: list[str]
    trajectories_S: NDArray[np.int64]  # which trajectory each sample belongs to


def trajectories(samples: Sequence[Sample]) -> NDArray[np.int64]:
    """Index [S], from 0 in order of appearance, of the trajectory that each sample belongs to."""
    index: dict[tuple[int, int], int] = {}
    keys = [(sample.game_id, sample.seat) for sample in samples]
    return np.array([index.setdefault(key, len(index)) for key in keys], dtype=np.int64)


def by_trajectory(samples: Sequence[Sample], rewards_S: Floats) -> TrajectoryTable:
    """The samples' rewards [S] by trajectory.

    The mean over turns, not the sum: a term such as the outcome stands on every turn of a
    trajectory, and a sum would count it once for each.
    """
    trajectories_S = trajectories(samples)
    turns: dict[int, list[int]] = defaultdict(list)
    for place, trajectory in enumerate(trajectories_S.tolist()):
        turns[trajectory].append(place)
    firsts = [samples[places[0]] for places in turns.values()]
    rewards = rewards_S.tolist()
    # Exact before it is rounded, so that trajectories of equal rewards tie whatever their length.
    means = [mean([rewards[place] for place in places]) for places in turns.values()]
    return TrajectoryTable(
        rewards_T=np.array(means),
        groups_T=[sample.group_id for sample in firsts],
        envs_T=[sample.env for sample in firsts],
        trajectories_S=trajectories_S,
    )


def turn_rewards(samples: Sequence[Sample]) -> Floats:
    """What each turn [S] earned by itself, so that a trajectory's rewards add up to its return.

    The outcome stands on every turn of a trajectory, and counts at the last of them only.
    """
    trajectories_S = trajectories(samples).tolist()
    last: dict[int, int] = {}
    for trajectory, sample in zip(trajectories_S, samples, strict=True):
        last[trajectory] = max(sample.turn, last.get(trajectory, 0))
    return np.array(
        [
            math.fsum(
                reward.weighted
                for term, reward in sample.rewards.items()
                if term != OUTCOME or sample.turn == last[trajectory]
            )
            for trajectory, sample in zip(trajectories_S, samples, strict=True)
        ]
    )


def generalized_advantages(
    rewards_S: Floats,
    values_S: Floats,
    trajectories_S: NDArray[np.int64],
    turns_S: Sequence[int],
    *,
    gamma: float,
    decay: float,
) -> Floats:
    """Generalised advantages [S] along each trajectory's turns, in whatever order they are given.

    A = sum over k of (gamma * decay)^k * (reward + gamma * next value - value), k turns later; the
    value after the last turn is 0. GAE of Schulman et al., https://arxiv.org/abs/1506.02438, whose
    lambda is `decay`: 0 is the one-step error, 1 the return minus the value.
    """
    advantages_S = np.empty_like(rewards_S)
    next_value, next_advantage = (dict.fromkeys(trajectories_S.tolist(), 0.0) for _ in range(2))
    for place in sorted(range(len(turns_S)), key=lambda place: -turns_S[place]):
        trajectory = int(trajectories_S[place])
        error = rewards_S[place] + gamma * next_value[trajectory] - values_S[place]
        advantages_S[place] = error + gamma * decay * next_advantage[trajectory]
        next_value[trajectory] = values_S[place]
        next_advantage[trajectory] = advantages_S[place]
    return advantages_S


def explained_variance(values_S: Floats, residuals_S: Floats) -> float | None:
    """Share of the variance of values + residuals that the values explain; below 0 they mislead.

    None where there is no variance to explain.
    """
    variance = float((values_S + residuals_S).var())
    return 1 - float(residuals_S.var()) / variance if variance > 0 else None


def group_sizes(groups_T: Sequence[int]) -> Floats:
    """How many trajectories [T] the group of each has."""
    sizes = Counter(groups_T)
    return np.array([float(sizes[group]) for group in groups_T])


def center_by(values: Floats, keys: Sequence[Hashable]) -> Floats:
    """Each value minus the mean of those with its key; exact zeros where they are all equal."""
    centered = np.zeros_like(values)
    for places in _places(keys):
        group = values[places]
        # Compared, not subtracted: the mean of equal numbers may differ from them by rounding.
        if group.min() < group.max():
            centered[places] = group - math.fsum(group) / len(group)
    return centered


def deviation_by(values: Floats, keys: Sequence[Hashable]) -> Floats:
    """The population standard deviation of the values with each one's key; at least a millionth.

    Less than that is rounding, which a division would blow up.
    """
    deviations = np.empty_like(values)
    for places in _places(keys):
        deviations[places] = max(float(values[places].std()), MIN_DEVIATION)
    return deviations


def normalize_by_env(
    advantages_S: Floats, envs: Sequence[str], mode: Literal["none", "center", "zscore"]
) -> Floats:
    """Advantages [S] as they are, minus their env's mean, or also divided by its deviation.

    An env whose advantages are all equal gets zeros, in both of the latter modes.
    """
    if mode == "none":
        return advantages_S.copy()
    centered_S = center_by(advantages_S, envs)
    return centered_S / deviation_by(advantages_S, envs) if mode == "zscore" else centered_S


def _places(keys: Sequence[Hashable]) -> list[list[int]]:
    """Places that have the same key, key by key."""
    places: dict[Hashable, list[int]] = defaultdict(list)
    for place, key in enumerate(keys):
        places[key].append(place)
    return list(places.values())
