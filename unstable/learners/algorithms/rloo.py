"""RLOO: each trajectory's baseline is the mean reward of the others of its group.

Kool et al. 2019, https://openreview.net/forum?id=r1lgTGL5DE; for language models: Ahmadian et al.,
https://arxiv.org/abs/2402.14740.
"""

from unstable.config import RLOOConfig
from unstable.learners.advantages import leave_one_out
from unstable.learners.batch import FlatBatch, Floats
from unstable.learners.clipped import Surrogate


class RLOO(Surrogate):
    """Leave-one-out advantages, and the ratio of a whole trajectory."""

    config: RLOOConfig

    def advantages(self, batch: FlatBatch, rewards_S: Floats) -> Floats:
        return leave_one_out(batch.mean_T(rewards_S), batch.groups_T)[batch.trajectories_S]
