"""Which class asks each kind of oracle."""

from collections.abc import Callable
from typing import Any

from unstable.config import RewardConfig
from unstable.rewards.oracles.base import Oracle
from unstable.rewards.oracles.http import HTTPService
from unstable.rewards.oracles.judge import Judge
from unstable.rewards.oracles.reward_model import RewardModel
from unstable.rewards.oracles.teacher import Teacher

KINDS: dict[str, Callable[[str, str, Any], Oracle]] = {
    "http": HTTPService,
    "judge": Judge,
    "reward_model": RewardModel,
    "teacher": Teacher,
}
"""By the term's name."""


def make_oracle(reward: RewardConfig, field: str) -> Oracle:
    """The oracle of a term, which asks and loads nothing yet."""
    return KINDS[reward.term](reward.key, field, reward.oracle)
