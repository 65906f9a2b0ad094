"""VRPO: PPO's clipped ratios, with the advantages of a critic Q(s, a) for all legal moves.

Fan and Farina 2026, https://arxiv.org/abs/2605.19235.
"""

from dataclasses import replace

import torch

from unstable.config import VRPOConfig
from unstable.learners.algorithm import Loss, Tokens
from unstable.learners.clipped import Surrogate
from unstable.learners.losses import policy_ratios, proximal_terms, sequence_sums


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
        """Add the KL to the policy before the update, as in mirror descent, and margins."""
        plain = super().loss(tokens)
        terms_N = proximal_terms(tokens.logprobs_N, tokens.old_logprobs_N, tokens.turns_N)
        terms_N = self.config.proximal * terms_N
        if (
            tokens.margins_N is not None
        ):  # not clipped: a margin moves all listed moves of a prompt alike
            ratios_N = policy_ratios(tokens.logprobs_N, tokens.old_logprobs_N, tokens.turns_N)
            terms_N = terms_N - tokens.margins_N * ratios_N
        lengths_N = sequence_sums(torch.ones_like(terms_N), tokens.turns_N)
        value = (terms_N / lengths_N / tokens.normalizers_N).sum()
        return replace(plain, value=plain.value + value)
