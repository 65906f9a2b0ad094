"""A2C: a critic's advantages with the plain policy gradient, one optimizer step per batch.

Mnih et al. 2016, https://arxiv.org/abs/1602.01783, in its synchronous form; with truncated
importance weights for what an earlier version or another engine has sampled.
"""

from unstable.config import A2CConfig
from unstable.learners.algorithms.reinforce import PolicyGradient


class A2C(PolicyGradient):
    """REINFORCE whose baseline is learned for every observation."""

    config: A2CConfig
