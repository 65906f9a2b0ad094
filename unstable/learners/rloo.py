"""RLOO: each trajectory's baseline is the mean reward of the others of its group.

Kool et al. 2019, https://openreview.net/forum?id=r1lgTGL5DE; for language models: Ahmadian et al.,
https://arxiv.org/abs/2402.14740.
"""

from collections.abc import Sequence

import numpy as np

from unstable.config import RLOOConfig
from unstable.learners.advantages import (
    Floats,
    by_trajectory,
    center_by,
    group_sizes,
    normalize_by_env,
)
from unstable.learners.clipped import Surrogate
from unstable.types import Sample


class RLOO(Surrogate):
    """Leave-one-out advantages, and the ratio of a whole trajectory."""

    config: RLOOConfig

    def rewards(self, samples: Sequence[Sample]) -> Floats:
        """The samples' rewards within `reward_clip`."""
        rewards_S = super().rewards(samples)
        bounds = self.config.reward_clip
        return rewards_S if bounds is None else np.clip(rewards_S, *bounds)

    def advantages(self, samples: Sequence[Sample], rewards_S: Floats) -> Floats:
        table = by_trajectory(samples, rewards_S)
        advantages_T = leave_one_out(table.rewards_T, table.groups_T)
        if self.config.normalize_advantages:
            advantages_T = normalize_by_env(advantages_T, table.envs_T, "zscore")
        return advantages_T[table.trajectories_S]


def leave_one_out(rewards_T: Floats, groups_T: Sequence[int]) -> Floats:
    """Rewards [T] minus the mean of the others of their group: G / (G - 1) * (reward - mean).

    Alone in its group a trajectory gets 0, as there is nothing to compare it with.
    """
    sizes_T = group_sizes(groups_T)
    return center_by(rewards_T, groups_T) * sizes_T / np.maximum(sizes_T - 1, 1)
