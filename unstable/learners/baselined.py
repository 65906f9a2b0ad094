"""What algorithms have in common whose advantages are rewards minus a baseline for each role."""

from typing import Any

from unstable.config import PPOConfig, ReinforceConfig
from unstable.learners.advantages import RoleBaseline, normalize_by_env
from unstable.learners.algorithm import Algorithm
from unstable.learners.batch import FlatBatch, Floats, role_suffix


class RoleBaselined(Algorithm):
    """Rewards minus their role's baseline, normalised within each env."""

    config: ReinforceConfig | PPOConfig

    def __init__(self, config: ReinforceConfig | PPOConfig) -> None:
        super().__init__(config)
        self.baseline = RoleBaseline(config.baseline_decay)

    def advantages(self, batch: FlatBatch, rewards_S: Floats) -> Floats:
        advantages_S = self.baseline.advantages(batch, rewards_S)
        return normalize_by_env(advantages_S, batch.envs_S, self.config.normalize)

    def metrics(self) -> dict[str, float | None]:
        values = self.baseline.values
        return {f"learn/baseline{role_suffix(role)}": value for role, value in values.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"baseline": self.baseline.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # Earlier checkpoints of an algorithm with a critic have none.
        self.baseline.load_state_dict(state.get("baseline", {}))
