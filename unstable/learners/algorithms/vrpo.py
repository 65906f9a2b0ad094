"""VRPO: PPO's clipped ratios, with advantages from a critic Q(s, a) of the legal moves.

Fan and Farina 2026, https://arxiv.org/abs/2605.19235.
"""

import dataclasses

from torch import Tensor

from unstable.config import VRPOConfig
from unstable.learners.algorithm import Loss, Tokens
from unstable.learners.clipped import Surrogate
from unstable.learners.losses import sequence_sums


class VRPO(Surrogate):
    """Clipped policy gradients over all legal moves, or of the sampled ones.

    The advantages are the critic's (`learners/action_critic.py`).
    """

    config: VRPOConfig

    @property
    def mirror(self) -> bool:
        return self.config.critic.gradient == "mirror"

    @property
    def whole_in_step(self) -> bool:
        """True over all moves: a step holds all moves of a prompt, which share its tokens."""
        return self.config.critic.gradient != "sampled" or super().whole_in_step

    @property
    def whole_in_pass(self) -> bool:
        return self.config.critic.gradient == "mirror" or super().whole_in_pass

    def loss(self, tokens: Tokens) -> Loss:
        if self.config.critic.gradient != "mirror":
            return super().loss(tokens)
        entropy, kl = self.coefficients.entropy, self.coefficients.kl_loss
        own_N = sequence_sums(tokens.logprobs_N.detach(), tokens.turns_N)
        costs_N = entropy * own_N
        if kl:
            costs_N = costs_N + kl * (
                own_N - sequence_sums(tokens.reference_logprobs_N, tokens.turns_N)
            )
        scores_N = tokens.advantages_N - costs_N
        scores_N = scores_N - self._means(scores_N, tokens)
        return super().loss(dataclasses.replace(tokens, advantages_N=scores_N))

    def _means(self, values_N: Tensor, tokens: Tokens) -> Tensor:
        """Mean over the moves of each prompt."""
        lengths_N = sequence_sums(values_N.new_ones(len(values_N)), tokens.turns_N)
        counts_N = sequence_sums(1 / lengths_N, tokens.sequences_N)
        return sequence_sums(values_N / lengths_N, tokens.sequences_N) / counts_N
