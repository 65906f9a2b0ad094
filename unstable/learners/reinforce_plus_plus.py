"""REINFORCE++: rewards normalised over the whole batch, PPO's clip, no groups and no critic.

https://arxiv.org/abs/2501.03262.
"""

from collections.abc import Sequence

from unstable.config import ReinforcePlusPlusConfig
from unstable.learners.advantages import Floats, normalize_by_env
from unstable.learners.clipped import Surrogate
from unstable.types import Sample


class ReinforcePlusPlus(Surrogate):
    """A = (reward - mean) / deviation over the batch's turns of the env."""

    config: ReinforcePlusPlusConfig

    def advantages(self, samples: Sequence[Sample], rewards_S: Floats) -> Floats:
        return normalize_by_env(rewards_S, [sample.env for sample in samples], "zscore")
