"""PPO: the clipped ratio of each token, with a critic's advantages or a baseline for each role.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347.
"""

from unstable.config import PPOConfig
from unstable.learners.algorithms.reinforce import RoleBaselined
from unstable.learners.clipped import Surrogate


class PPO(RoleBaselined, Surrogate):
    """Several optimizer steps per batch, each near the policy before the update.

    With a critic its `advantages` and baseline are not used.
    """

    config: PPOConfig
