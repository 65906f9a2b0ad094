"""DPO, direct preference optimization: a classifier of pairs whose logit is beta x margin.

Rafailov et al. 2023, https://arxiv.org/abs/2305.18290. With label smoothing it is cDPO (Mitchell
2023, https://ericmitchell.ai/cdpo.pdf), with a length weight R-DPO (Park et al. 2024,
https://arxiv.org/abs/2403.19159).
"""

from torch import Tensor

from unstable.config import DPOConfig
from unstable.learners.preference_losses import length_regularized, logistic_losses
from unstable.learners.preferences import PairTokens, Pairwise


class DPO(Pairwise):
    """Logistic losses of the pairs."""

    config: DPOConfig

    def losses(self, pairs: PairTokens) -> Tensor:
        scores_N = self.config.beta * pairs.margins_N
        scores_N = length_regularized(scores_N, pairs.longer_N, self.config.length_weight)
        return logistic_losses(scores_N, label_smoothing=self.config.label_smoothing)
