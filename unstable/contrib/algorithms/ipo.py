"""IPO, identity preference optimisation: the margin is to be 1 / (2 beta), and no more.

Azar et al. 2023, https://arxiv.org/abs/2310.12036. Of means a token, so that a long answer is
compared with a short one.
"""

from torch import Tensor

from unstable.config import IPOConfig
from unstable.learners.preferences import PairTokens, Pairwise


def ipo_losses(margins: Tensor, *, beta: float) -> Tensor:
    """(margin - 1 / (2 beta))^2: IPO, https://arxiv.org/abs/2310.12036, whose tau is beta."""
    return (margins - 1 / (2 * beta)) ** 2


class IPO(Pairwise):
    """Squared distances from that margin."""

    token_means = True
    config: IPOConfig

    def losses(self, pairs: PairTokens) -> Tensor:
        return ipo_losses(pairs.margins_N, beta=self.config.beta)
