"""SimPO, simple preference optimisation: mean log-probabilities a token, and no reference.

Meng et al. 2024, https://arxiv.org/abs/2405.14734.
"""

from torch import Tensor

from unstable.config import SimPOConfig
from unstable.learners.preference_losses import logistic_losses
from unstable.learners.preferences import PairTokens, Pairwise


def simpo_losses(
    margins: Tensor, *, beta: float, gamma: float, label_smoothing: float = 0.0
) -> Tensor:
    """Logistic losses of beta x margin - gamma: SimPO, https://arxiv.org/abs/2405.14734.

    Its margin is the difference of the answers' mean log-probabilities a token, without reference.
    """
    return logistic_losses(beta * margins - gamma, label_smoothing=label_smoothing)


class SimPO(Pairwise):
    """Logistic losses of the pairs, less a target margin gamma."""

    token_means = True
    config: SimPOConfig

    def losses(self, pairs: PairTokens) -> Tensor:
        return simpo_losses(
            pairs.margins_N,
            beta=self.config.beta,
            gamma=self.config.gamma,
            label_smoothing=self.config.label_smoothing,
        )
