"""Advantages: pure functions of a batch's rewards, computed on whole groups before any shuffle."""

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Role = tuple[str, int]
"""An env and a seat in it."""

Floats = NDArray[np.float64]


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
            mean = math.fsum(means) / len(means)
            self.values[role] = kept * self.values.get(role, 0.0) + (1 - kept) * mean
        return advantages_S

    def state_dict(self) -> dict[Role, float]:
        """All that a resume needs."""
        return dict(self.values)

    def load_state_dict(self, state: dict[Role, float]) -> None:
        """Restore what `state_dict` gave."""
        self.values = dict(state)


def normalize_by_env(
    advantages_S: Floats, envs: Sequence[str], mode: Literal["none", "center", "zscore"]
) -> Floats:
    """Advantages [S] as they are, minus their env's mean, or also divided by its deviation.

    An env whose advantages are all equal gets zeros, in both of the latter modes.
    """
    if mode == "none":
        return advantages_S.copy()
    normalized_S = np.zeros_like(advantages_S)
    names = np.array(envs)
    for env in set(envs):
        members = names == env
        values = advantages_S[members]
        # Compared, not subtracted: the mean of equal numbers may differ from them by rounding.
        if values.min() == values.max():
            continue
        centered = values - math.fsum(values) / len(values)
        normalized_S[members] = centered / centered.std() if mode == "zscore" else centered
    return normalized_S
