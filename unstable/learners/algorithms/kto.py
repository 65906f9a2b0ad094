"""KTO, Kahneman-Tversky optimization: single answers, desirable ones and others.

Ethayarajh et al. 2024, https://arxiv.org/abs/2402.01306. z0, the KL that log-ratios are compared
with, is their mean over the update's turns. The policy sampled these, so it is an unbiased estimate
of KL(policy || reference). The paper's estimate, from answers paired with other prompts, is meant
for data that the policy did not sample.
"""

import torch

from unstable.config import Aggregation, KTOConfig
from unstable.learners.advantages import center_by, group_advantages
from unstable.learners.algorithm import Loss, Mask, Tokens
from unstable.learners.batch import FlatBatch, Floats
from unstable.learners.losses import sequence_sums
from unstable.learners.pairs import ROUNDING
from unstable.learners.preference_losses import kto_losses
from unstable.learners.preferences import Preferences, reference_ratios


class KTO(Preferences):
    """Turns of trajectories above or below the mean; those at it are left out."""

    uses_log_ratios = True
    kl = 0.0
    config: KTOConfig

    @property
    def aggregation(self) -> Aggregation:
        return "turn"

    def advantages(self, batch: FlatBatch, rewards_S: Floats) -> Floats:
        if self.config.baseline == "group":
            return group_advantages(batch, rewards_S, "none")
        return center_by(batch.mean_T(rewards_S), batch.roles_T)[batch.trajectories_S]

    def trained(self, batch: FlatBatch, advantages_S: Floats) -> Mask:
        kept_S: Mask = abs(advantages_S) > ROUNDING
        self.updates_skipped += not kept_S.any()
        return kept_S

    def refer(self, log_ratios_P: Floats) -> None:
        self.kl = max(0.0, float(log_ratios_P.mean()))

    def loss(self, tokens: Tokens) -> Loss:
        config, desirable_N = self.config, tokens.advantages_N > 0
        log_ratios_N = sequence_sums(reference_ratios(tokens), tokens.turns_N)
        losses_N = kto_losses(log_ratios_N, desirable_N, kl=self.kl, beta=config.beta)
        weights = config.desirable_weight, config.undesirable_weight
        losses_N = torch.where(desirable_N, *weights) * losses_N
        gains_N = torch.where(desirable_N, 1.0, -1.0) * config.beta * (log_ratios_N - self.kl)
        means = {"learn/kto_accuracy": (gains_N > 0).float(), "learn/kto_margin": gains_N}
        value = (losses_N / tokens.normalizers_N).sum()
        return Loss(value, torch.ones_like(losses_N), turn_means=means)

    def metrics(self) -> dict[str, float | None]:
        return {"learn/kto_kl": self.kl, **super().metrics()}
