"""GSPO: GRPO's advantages with one ratio a sequence, the geometric mean of its tokens'.

https://arxiv.org/abs/2507.18071.
"""

from collections.abc import Sequence

from unstable.config import GSPOConfig
from unstable.learners.advantages import Floats
from unstable.learners.clipped import Surrogate
from unstable.learners.grpo import group_advantages
from unstable.types import Sample


class GSPO(Surrogate):
    """Its clip is narrow, as the mean of many log-ratios is near 0."""

    config: GSPOConfig
    length_normalized = True

    def advantages(self, samples: Sequence[Sample], rewards_S: Floats) -> Floats:
        return group_advantages(samples, rewards_S, "group")
