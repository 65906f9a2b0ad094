"""GRPO: rewards relative to their group's, with the clipped ratio of each token.

DeepSeekMath, https://arxiv.org/abs/2402.03300. `scale: none` with `aggregation: constant` is
Dr. GRPO, https://arxiv.org/abs/2503.20783; `clip_high` above `clip_low` with `aggregation: token`
is DAPO's loss, https://arxiv.org/abs/2503.14476; `scale: batch` is Lite PPO's,
https://arxiv.org/abs/2508.08221.
"""

from collections.abc import Sequence
from typing import Literal

from unstable.config import GRPOConfig
from unstable.learners.advantages import Floats, by_trajectory, center_by, deviation_by
from unstable.learners.clipped import Surrogate
from unstable.types import Sample

Scale = Literal["none", "group", "batch"]


class GRPO(Surrogate):
    """Group-relative advantages."""

    config: GRPOConfig

    def advantages(self, samples: Sequence[Sample], rewards_S: Floats) -> Floats:
        return group_advantages(samples, rewards_S, self.config.scale)


def group_advantages(samples: Sequence[Sample], rewards_S: Floats, scale: Scale) -> Floats:
    """For each sample [S] the group-relative reward of its trajectory."""
    table = by_trajectory(samples, rewards_S)
    advantages_T = group_relative(table.rewards_T, table.groups_T, table.envs_T, scale)
    return advantages_T[table.trajectories_S]


def group_relative(
    rewards_T: Floats,
    groups_T: Sequence[int],
    envs_T: Sequence[str],
    scale: Scale,
) -> Floats:
    """Rewards [T] minus their group's mean, divided by a population deviation or as they are.

    The deviation is that of the group's rewards, or of the batch's rewards in the env. A tied group
    and a trajectory that is alone in its group get 0.
    """
    centered_T = center_by(rewards_T, groups_T)
    if scale == "none":
        return centered_T
    return centered_T / deviation_by(rewards_T, groups_T if scale == "group" else envs_T)
