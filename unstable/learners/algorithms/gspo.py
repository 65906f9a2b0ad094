"""GSPO: GRPO's advantages with one ratio per sequence, the geometric mean of its tokens'.

https://arxiv.org/abs/2507.18071.
"""

from unstable.config import GSPOConfig
from unstable.learners.advantages import group_advantages
from unstable.learners.batch import FlatBatch, Floats
from unstable.learners.clipped import Surrogate


class GSPO(Surrogate):
    """GRPO with sequence ratios and a narrow clip: the mean of many log-ratios is near 0."""

    config: GSPOConfig
    length_normalized = True

    def advantages(self, batch: FlatBatch, rewards_S: Floats) -> Floats:
        return group_advantages(batch, rewards_S, "group")
