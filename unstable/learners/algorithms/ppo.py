"""PPO: a critic's advantages with the clipped ratio of each token.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347.
"""

from unstable.config import PPOConfig
from unstable.learners.clipped import Surrogate


class PPO(Surrogate):
    """Several optimizer steps a batch, each near the policy that the update began with."""

    config: PPOConfig
