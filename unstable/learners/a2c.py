"""A2C: a critic's advantages with the plain policy gradient, one optimizer step a batch.

Mnih et al. 2016, https://arxiv.org/abs/1602.01783, in its synchronous form; with truncated
importance weights for what an earlier version or another engine has sampled.
"""

from unstable.config import A2CConfig
from unstable.learners.actor_critic import ActorCritic
from unstable.learners.algorithm import Loss, Tokens
from unstable.learners.losses import reinforce_loss


class A2C(ActorCritic):
    """REINFORCE whose baseline is learned for every observation; no ratio is clipped."""

    config: A2CConfig
    uses_old_logprobs = False

    def loss(self, tokens: Tokens) -> Loss:
        value, ratios_N = reinforce_loss(
            tokens.logprobs_N,
            tokens.behaviour_logprobs_N,
            tokens.advantages_N,
            cap=self.config.importance_cap,
            normalizer=tokens.normalizers_N,
        )
        return Loss(value=value, ratios_N=ratios_N)
