"""VRPO: PPO's clipped ratios, with the advantages of a critic Q(s, a) for all legal moves.

Fan and Farina 2026, https://arxiv.org/abs/2605.19235.
"""

import math
from dataclasses import replace

import torch

from unstable.config import VRPOConfig
from unstable.learners.algorithm import Loss, Tokens
from unstable.learners.clipped import Surrogate
from unstable.learners.losses import MAX_LOG_RATIO, proximal_loss


class VRPO(Surrogate):
    """Clipped policy gradients over all legal moves, or of the sampled ones.

    The critic (`learners/action_critic.py`) computes the advantages.
    """

    config: VRPOConfig

    @property
    def whole_in_step(self) -> bool:
        """True over all moves: those of a prompt, which share its tokens, stay together."""
        return self.config.critic.gradient == "all" or super().whole_in_step

    def loss(self, tokens: Tokens) -> Loss:
        """Add the KL to the policy before the update, as in mirror descent."""
        plain = super().loss(tokens)
        if not self.config.proximal:
            return plain
        log_cap = math.log(max(1.0, self.config.importance_cap))
        divergence = proximal_loss(
            tokens.logprobs_N,
            tokens.old_logprobs_N,
            tokens.turns_N,
            log_caps_N=torch.where(tokens.enumerated_N, MAX_LOG_RATIO, log_cap),
            normalizer=tokens.normalizers_N,
        )
        return replace(plain, value=plain.value + self.config.proximal * divergence)
