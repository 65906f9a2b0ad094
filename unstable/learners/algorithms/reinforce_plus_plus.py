"""REINFORCE++: rewards normalized over the whole batch, PPO's clip, no groups and no critic.

https://arxiv.org/abs/2501.03262.
"""

from unstable.config import ReinforcePlusPlusConfig
from unstable.learners.advantages import normalize_by_env
from unstable.learners.batch import FlatBatch, Floats
from unstable.learners.clipped import Surrogate


class ReinforcePlusPlus(Surrogate):
    """A = (reward - mean) / deviation over the batch's turns of the env."""

    config: ReinforcePlusPlusConfig

    def advantages(self, batch: FlatBatch, rewards_S: Floats) -> Floats:
        return normalize_by_env(rewards_S, batch.envs_S, "zscore")
