"""A2C: a critic's advantages with the plain policy gradient, one optimizer step a batch.

Mnih et al. 2016, https://arxiv.org/abs/1602.01783, in its synchronous form; with truncated
importance weights for what an earlier version or another engine has sampled.
"""

from unstable.config import A2CConfig
from unstable.learners.algorithm import Algorithm, Loss, Tokens
from unstable.learners.algorithms.reinforce import reinforce_loss


class A2C(Algorithm):
    """REINFORCE whose baseline is learned for every observation; no ratio is clipped."""

    config: A2CConfig
    uses_old_logprobs = False

    def loss(self, tokens: Tokens) -> Loss:
        return reinforce_loss(tokens, self.config.importance_cap)
