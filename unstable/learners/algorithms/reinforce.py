"""REINFORCE with a baseline for each role and truncated importance weights.

Williams 1992, https://doi.org/10.1007/BF00992696; for self-play: SPIRAL,
https://arxiv.org/abs/2506.24119; weights: Ionides 2008, https://doi.org/10.1198/106186008X320456.
"""

from typing import Any

from unstable.config import PPOConfig, ReinforceConfig
from unstable.learners.advantages import RoleBaseline, normalize_by_env
from unstable.learners.algorithm import Algorithm, Loss, Tokens
from unstable.learners.batch import FlatBatch, Floats
from unstable.learners.losses import log_ratios


class PolicyGradient(Algorithm):
    """-sum(min(ratio, cap) * advantage * logprob / normalizer); no ratio is clipped.

    The ratio to the behavior policy is a constant. Where the advantage is zero, so is the loss.
    """

    uses_old_logprobs = False

    def loss(self, tokens: Tokens) -> Loss:
        cap = self.config.importance_cap
        ratios_N = log_ratios(tokens.logprobs_N, tokens.behavior_logprobs_N).exp()
        weights_N = ratios_N.clamp(max=cap)
        losses_N = weights_N * tokens.advantages_N * tokens.logprobs_N / tokens.normalizers_N
        capped_N = (ratios_N > cap).float()
        return Loss(-losses_N.sum(), ratios_N, {"learn/importance_capped": capped_N})


class RoleBaselined(Algorithm):
    """Rewards minus their role's baseline, normalized within each env, for a loss beside it."""

    config: ReinforceConfig | PPOConfig

    def __init__(self, config: ReinforceConfig | PPOConfig) -> None:
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


class Reinforce(RoleBaselined, PolicyGradient):
    """The policy gradient with a baseline for each role."""

    config: ReinforceConfig
