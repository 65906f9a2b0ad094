"""IPO, identity preference optimization: a squared loss with the target margin 1 / (2 beta).

Azar et al. 2023, https://arxiv.org/abs/2310.12036. Log-probabilities are means per token, so that
answers of different lengths are comparable.
"""

from torch import Tensor

from unstable.config import IPOConfig
from unstable.learners.preferences import PairTokens, Pairwise


def ipo_losses(margins: Tensor, *, beta: float) -> Tensor:
    """Compute (margin - 1 / (2 beta))^2: IPO, https://arxiv.org/abs/2310.12036; beta is its tau."""
    return (margins - 1 / (2 * beta)) ** 2


class IPO(Pairwise):
    """Squared distances of the margins from 1 / (2 beta)."""

    token_means = True
    config: IPOConfig

    def losses(self, pairs: PairTokens) -> Tensor:
        return ipo_losses(pairs.margins_N, beta=self.config.beta)
