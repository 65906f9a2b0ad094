"""VRPO: PPO's clipped ratios, with the advantages of a critic Q(s, a) for all legal moves.

Fan and Farina 2026, https://arxiv.org/abs/2605.19235.
"""

import math
from dataclasses import replace

import torch

from unstable.config import VRPOConfig
from unstable.learners.algorithm import Loss, Tokens
from unstable.learners.all_moves import RAREST
from unstable.learners.clipped import Surrogate
from unstable.learners.losses import proximal_loss, sequence_sums

_LEAST_PROBABILITY = 0.2
"""Minimum probability with which a legal move of positive advantage counts."""


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
        """Add the KL to the policy before the update, as in mirror descent.

        A listed move of positive advantage counts in both with a probability of at least
        `_LEAST_PROBABILITY`: a softmax gradient vanishes with the probability, so that self-play
        would stop at a policy against which a best response still gains.
        """
        log_likely_N = sequence_sums(tokens.old_logprobs_N, tokens.turns_N)
        log_likely_N = log_likely_N.clamp(min=math.log(RAREST))
        logs_N = (math.log(_LEAST_PROBABILITY) - log_likely_N).clamp(min=0)
        logs_N = torch.where(tokens.enumerated_N & (tokens.advantages_N > 0), logs_N, 0.0)
        raised_N = logs_N.exp()
        plain = super().loss(replace(tokens, advantages_N=raised_N * tokens.advantages_N))
        if not self.config.proximal:
            return plain
        log_cap = math.log(max(1.0, self.config.importance_cap))
        divergence = proximal_loss(
            tokens.logprobs_N,
            tokens.old_logprobs_N,
            tokens.turns_N,
            # No move counts with a probability above 1.
            log_caps_N=torch.where(tokens.enumerated_N, -log_likely_N - logs_N, log_cap),
            normalizer=tokens.normalizers_N / raised_N,
        )
        return replace(plain, value=plain.value + self.config.proximal * divergence)
