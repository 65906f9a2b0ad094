"""Common parts of algorithms that clip a ratio: from their config to a loss."""

from torch import Tensor

from unstable.config import Aggregation, ClippedConfig, SurrogateConfig
from unstable.learners.algorithm import Algorithm, Loss, Tokens
from unstable.learners.losses import (
    clipped_loss,
    log_ratios,
    masked_weights,
    policy_ratios,
    sequence_mask,
    truncated_weights,
)


class Clipped(Algorithm):
    """Aggregation, correction for the behavior policy."""

    config: ClippedConfig

    @property
    def aggregation(self) -> Aggregation:
        return self.config.aggregation

    @property
    def whole_in_step(self) -> bool:
        return self.config.aggregation == "sequence"

    @property
    def whole_in_pass(self) -> bool:
        return self.whole_in_step and self.config.importance == "sequence_mask"

    def sequences(self, tokens: Tokens) -> Tensor:
        """Return each token's sequence: the trajectory if steps keep it whole, else the turn."""
        return tokens.sequences_N if self.whole_in_step else tokens.turns_N

    def importance_weights(self, tokens: Tokens) -> Tensor:
        """Compute each token's [N] importance weight, old policy over behavior policy."""
        config = self.config
        log_ratios_N = log_ratios(tokens.old_logprobs_N, tokens.behavior_logprobs_N)
        low, high = config.importance_floor, config.importance_cap
        if config.importance == "truncate":
            return truncated_weights(log_ratios_N, high)
        if config.importance == "mask":
            return masked_weights(log_ratios_N, low, high)
        if config.importance == "sequence_mask":
            return sequence_mask(log_ratios_N, self.sequences(tokens), low, high)
        return log_ratios_N.new_ones(len(log_ratios_N))

    def report(self, value: Tensor, ratios_N: Tensor, weights_N: Tensor, tokens: Tokens) -> Loss:
        """The loss, with the shares of tokens that clip, cap and masks change the gradient of."""
        above_N = ratios_N > 1 + self.config.clip_high
        below_N = ratios_N < 1 - self.config.clip_low
        truncates = self.config.importance == "truncate"
        means = {
            "learn/clipped_low": (below_N & (tokens.advantages_N < 0)).float(),
            "learn/clipped_high": (above_N & (tokens.advantages_N > 0)).float(),
            "learn/importance_masked": (weights_N == 0).float(),
            "learn/importance_capped": (
                truncates * (weights_N == self.config.importance_cap).float()
            ),
        }
        return Loss(value, ratios_N, means)


class Surrogate(Clipped):
    """The clipped surrogate of a token's, a turn's or a trajectory's ratio."""

    config: SurrogateConfig
    length_normalized = False

    @property
    def whole_in_step(self) -> bool:
        return "sequence" in (self.config.ratio, self.config.aggregation)

    @property
    def whole_in_pass(self) -> bool:
        return self.config.ratio == "sequence" or super().whole_in_pass

    def loss(self, tokens: Tokens) -> Loss:
        config = self.config
        levels = {"token": None, "turn": tokens.turns_N, "sequence": tokens.sequences_N}
        ratios_N = policy_ratios(
            tokens.logprobs_N,
            tokens.old_logprobs_N,
            levels[config.ratio],
            length_normalized=self.length_normalized,
        )
        weights_N = self.importance_weights(tokens)
        value = clipped_loss(
            ratios_N,
            tokens.advantages_N,
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            dual_clip=config.dual_clip,
            weights_N=weights_N,
            normalizer=tokens.normalizers_N,
        )
        return self.report(value, ratios_N, weights_N, tokens)
