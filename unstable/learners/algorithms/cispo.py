"""CISPO: GRPO's advantages with a clipped weight in place of a clipped update.

MiniMax-M1, https://arxiv.org/abs/2506.13585.
"""

from unstable.config import CISPOConfig
from unstable.learners.advantages import group_advantages
from unstable.learners.algorithm import Loss, Tokens
from unstable.learners.batch import FlatBatch, Floats
from unstable.learners.clipped import Clipped
from unstable.learners.losses import clipped_weight_loss, policy_ratios


class CISPO(Clipped):
    """Rare tokens keep their gradient, however much likelier they have become."""

    config: CISPOConfig

    def advantages(self, batch: FlatBatch, rewards_S: Floats) -> Floats:
        return group_advantages(batch, rewards_S, "group")

    def loss(self, tokens: Tokens) -> Loss:
        ratios_N = policy_ratios(tokens.logprobs_N, tokens.old_logprobs_N).detach()
        weights_N = self.importance_weights(tokens)
        value = clipped_weight_loss(
            tokens.logprobs_N,
            ratios_N,
            tokens.advantages_N,
            clip_low=self.config.clip_low,
            clip_high=self.config.clip_high,
            weights_N=weights_N,
            normalizer=tokens.normalizers_N,
        )
        return self.report(value, ratios_N, weights_N, tokens)
