"""SimPO, simple preference optimization: mean log-probabilities per token, without reference.

Meng et al. 2024, https://arxiv.org/abs/2405.14734.
"""

from torch import Tensor

from unstable.config import SimPOConfig
from unstable.learners.preference_losses import logistic_losses
from unstable.learners.preferences import PairTokens, Pairwise


def simpo_losses(
    margins: Tensor, *, beta: float, gamma: float, label_smoothing: float = 0.0
) -> Tensor:
    """Compute logistic losses of beta x margin - gamma: SimPO, https://arxiv.org/abs/2405.14734.

    A margin is the difference of two answers' mean log-probabilities per token, without reference.
    """
    return logistic_losses(beta * margins - gamma, label_smoothing=label_smoothing)


class SimPO(Pairwise):
    """Logistic losses of the pairs, with a target margin gamma."""

    token_means = True
    config: SimPOConfig

    def losses(self, pairs: PairTokens) -> Tensor:
        return simpo_losses(
            pairs.margins_N,
            beta=self.config.beta,
            gamma=self.config.gamma,
            label_smoothing=self.config.label_smoothing,
        )
