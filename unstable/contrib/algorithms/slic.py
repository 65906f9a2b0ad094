"""SLiC, sequence likelihood calibration: a hinge loss on the margin relative to the reference.

Zhao et al. 2023, https://arxiv.org/abs/2305.10425. The paper's margin uses only the policy's
log-probabilities, with an SFT term instead of a reference.
"""

import torch
from torch import Tensor

from unstable.config import SLiCConfig
from unstable.learners.preference_losses import length_regularized
from unstable.learners.preferences import PairTokens, Pairwise


def hinge_losses(scores: Tensor) -> Tensor:
    """Compute max(0, 1 - score), with score = beta x margin: https://arxiv.org/abs/2305.10425.

    The paper's delta is 1 / beta, and its margin has no reference.
    """
    return torch.relu(1 - scores)


class SLiC(Pairwise):
    """Hinge losses of the pairs."""

    config: SLiCConfig

    def losses(self, pairs: PairTokens) -> Tensor:
        scores_N = self.config.beta * pairs.margins_N
        return hinge_losses(length_regularized(scores_N, pairs.longer_N, self.config.length_weight))
