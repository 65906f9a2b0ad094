"""PPO: the clipped ratio of each token, with a critic's advantages or a baseline for each role.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347.
"""

from typing import Any

from unstable.config import PPOConfig
from unstable.learners.advantages import RoleBaseline, normalize_by_env
from unstable.learners.batch import FlatBatch, Floats
from unstable.learners.clipped import Surrogate


class PPO(Surrogate):
    """Several optimizer steps a batch, each near the policy that the update began with.

    With a critic its `advantages` and baseline are not used.
    """

    config: PPOConfig

    def __init__(self, config: PPOConfig) -> None:
        super().__init__(config)
        self.baseline = RoleBaseline(config.baseline_decay)

    def advantages(self, batch: FlatBatch, rewards_S: Floats) -> Floats:
        advantages_S = self.baseline.advantages(batch, rewards_S)
        return normalize_by_env(advantages_S, batch.envs_S, self.config.normalize)

    def metrics(self) -> dict[str, float | None]:
        return self.baseline.metrics()

    def state_dict(self) -> dict[str, Any]:
        return {"baseline": self.baseline.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.baseline.load_state_dict(state["baseline"])
