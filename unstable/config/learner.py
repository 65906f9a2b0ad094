"""Training of the policy, except the algorithm's own settings."""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from unstable.config.algorithm import Decay
from unstable.config.algorithms import ALGORITHMS, AnyAlgorithm, ReinforceConfig
from unstable.config.base import Auto, NonNegativeInt, PathText, PositiveInt, Section, Share, Switch

_SAMPLES = 16
"""Samples of a micro-batch on a CPU if the config leaves the size open."""
_TOKENS = 16384
"""Tokens of a micro-batch on a GPU, enough that a pass is bound by arithmetic, not kernel
launches."""


class LearnerConfig(Section):
    """Training of the policy."""

    num: PositiveInt | Auto = "auto"
    """learner ranks; auto: about half of the GPUs, or the nearest number that fits"""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """base model on each rank: whole (ddp) or a shard (fsdp)"""
    algorithm: AnyAlgorithm = Field(
        ReinforceConfig(), description=f"by name: {', '.join(ALGORITHMS)}, or module:Class"
    )
    state: PathText | None = None
    """checkpoint with the initial optimizer, baselines and reference; null: fresh ones"""
    learning_rate: PositiveFloat = Field(1.0e-4, description="AdamW's peak learning rate")
    weight_decay: NonNegativeFloat = Field(0.0, description="AdamW's weight decay")
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """schedule of the learning rate after the warmup: constant, linear or cosine"""
    final_rate: Share = 0.0
    """final rate of linear and cosine schedules, as a share of the peak rate"""
    decay_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """share of all updates over which the schedule decays"""
    warmup_steps: NonNegativeInt = 0
    """optimizer steps over which the learning rate rises to its peak"""
    env_weights: Literal["equal", "spread"] = "equal"
    """weights of envs' samples: equal, or spread (by deviation of a seat's rewards in the batch)"""
    updates_before: NonNegativeInt = 0
    """updates before this run, as schedules and reference.every count them"""
    updates_after: NonNegativeInt = 0
    """updates after this run, as schedules count them"""
    batch_size: PositiveInt = 128
    """minimum samples (turns) per update; groups stay whole"""
    steps_per_batch: PositiveInt = Field(1, description="optimizer steps per pass through a batch")
    epochs: PositiveInt = Field(1, description="passes through each batch")
    max_kl: PositiveFloat | None = None
    """mean KL (k3) per turn to the policy before the update that ends it early; null: no limit"""
    ema: Decay | None = None
    """decay per update of the LoRA's moving average, saved with each version; null: none"""
    micro_batch_size: PositiveInt | Literal["auto"] = "auto"
    """samples per pass; auto: 16, or on a GPU by tokens; does not change the gradient"""
    micro_batch_tokens: PositiveInt | None = None
    """tokens per pass (on a GPU, shared ones once); null: no limit, or 16384 on a GPU with auto"""
    gradient_checkpointing: Switch = "auto"
    """recompute activations to save memory; auto: only if they do not fit"""
    compile: bool = Field(False, description="torch.compile the model's layers and head")
    grad_clip: PositiveFloat = Field(1.0, description="maximum gradient norm")
    max_bad_updates: PositiveInt = 3
    """consecutive updates with a non-finite loss or gradient before the run stops"""

    @property
    def steps_per_update(self) -> int:
        """Optimizer steps of an update, unless `max_kl` ends it early."""
        return self.epochs * self.steps_per_batch

    def micro_batch_limits(self, *, on_gpu: bool) -> tuple[int | None, int | None]:
        """Return the most samples and the most tokens per forward pass; None for no limit."""
        if self.micro_batch_size != "auto":
            return self.micro_batch_size, self.micro_batch_tokens
        if on_gpu:
            return None, self.micro_batch_tokens or _TOKENS
        return _SAMPLES, self.micro_batch_tokens

    def with_smaller_micro_batches(self, halvings: int) -> Self:
        """Return a copy with the micro-batch limits halved `halvings` times; 0 changes nothing."""
        size, tokens = self.micro_batch_size, self.micro_batch_tokens
        if size == "auto":
            tokens = tokens or _TOKENS
        else:
            size = max(1, size >> halvings)
        tokens = tokens and max(1, tokens >> halvings)
        limits = {"micro_batch_size": size, "micro_batch_tokens": tokens}
        return self.model_copy(update=limits) if halvings else self

    @model_validator(mode="after")
    def _enough_for_steps(self) -> Self:
        if self.batch_size < self.steps_per_batch:
            raise ValueError(
                f"steps_per_batch = {self.steps_per_batch}: greater than batch_size = "
                f"{self.batch_size}; lower learner.steps_per_batch"
            )
        return self

    @model_validator(mode="after")
    def _falls_by_schedule(self) -> Self:
        if self.schedule == "constant":
            why = "has no effect with a constant schedule; set learner.schedule to linear or cosine"
            self.refuse("final_rate", why)
            self.refuse("decay_fraction", why)
        return self
