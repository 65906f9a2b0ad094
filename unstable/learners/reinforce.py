"""REINFORCE with a baseline for each role and truncated importance weights.

Williams 1992, https://doi.org/10.1007/BF00992696; for self-play of language models: SPIRAL,
https://arxiv.org/abs/2506.24119.
"""

from collections.abc import Sequence
from typing import Any

from unstable.config import Aggregation, ReinforceConfig
from unstable.learners.advantages import Floats, RoleBaseline, normalize_by_env, role_suffix
from unstable.learners.algorithm import Loss, Tokens
from unstable.learners.losses import reinforce_loss
from unstable.learners.policy_gradient import PolicyGradient
from unstable.types import Sample


class Reinforce(PolicyGradient):
    """Rewards minus their role's baseline, normalised within each env; no ratio is clipped."""

    config: ReinforceConfig
    uses_old_logprobs = False

    def __init__(self, config: ReinforceConfig, *args: Any, **options: Any) -> None:
        super().__init__(config, *args, **options)
        self.baseline = RoleBaseline(config.baseline_decay)

    @property
    def aggregation(self) -> Aggregation:
        return "constant" if self.config.loss_norm == "constant" else "token"

    def advantages(self, samples: Sequence[Sample], rewards_S: Floats) -> Floats:
        advantages_S = self.baseline.advantages(
            rewards_S,
            roles=[(sample.env, sample.seat) for sample in samples],
            games=[sample.game_id for sample in samples],
        )
        return normalize_by_env(
            advantages_S, [sample.env for sample in samples], self.config.normalize
        )

    def loss(self, tokens: Tokens) -> Loss:
        value, ratios_N = reinforce_loss(
            tokens.logprobs_N,
            tokens.behaviour_logprobs_N,
            tokens.advantages_N,
            cap=self.config.importance_cap,
            normalizer=tokens.normalizers_N,
        )
        return Loss(value=value, ratios_N=ratios_N)

    def metrics(self) -> dict[str, float | None]:
        """The baseline of each role."""
        return {
            f"learn/baseline{role_suffix(role)}": value
            for role, value in self.baseline.values.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """The baselines, and the policy that a KL refers to."""
        return super().state_dict() | {"baseline": self.baseline.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""
        super().load_state_dict(state)
        self.baseline.load_state_dict(state["baseline"])
