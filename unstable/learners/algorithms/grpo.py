"""GRPO: rewards relative to their group's, with the clipped ratio of each token.

DeepSeekMath, https://arxiv.org/abs/2402.03300. `scale: none` with `aggregation: constant` is
Dr. GRPO, https://arxiv.org/abs/2503.20783; `clip_high` above `clip_low` with `aggregation: token`
is DAPO's loss, https://arxiv.org/abs/2503.14476; `scale: batch` is Lite PPO's,
https://arxiv.org/abs/2508.08221.
"""

from unstable.config import GRPOConfig
from unstable.learners.advantages import group_advantages
from unstable.learners.batch import FlatBatch, Floats
from unstable.learners.clipped import Surrogate


class GRPO(Surrogate):
    """Group-relative advantages."""

    config: GRPOConfig

    def advantages(self, batch: FlatBatch, rewards_S: Floats) -> Floats:
        return group_advantages(batch, rewards_S, self.config.scale)
