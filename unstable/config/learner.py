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
    """checkpoint whose optimizer, baselines and reference training starts from; null: new ones"""
    learning_rate: PositiveFloat = Field(1.0e-4, description="AdamW's peak learning rate")
    weight_decay: NonNegativeFloat = Field(0.0, description="AdamW's weight decay")
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """learning rate after the warmup"""
    final_rate: Share = 0.0
    """share of the peak rate at which the linear and cosine schedules end"""
    decay_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """share of all updates over which the schedule decays"""
    warmup_steps: NonNegativeInt = 0
    """optimizer steps over which the learning rate rises"""
    env_weights: Literal["equal", "spread"] = "equal"
    """weights of envs' samples: equal, or spread (by deviation of a seat's rewards in the batch)"""
    updates_before: NonNegativeInt = 0
    """updates before the run's first, in a longer training, for schedules and reference.every"""
    updates_after: NonNegativeInt = 0
    """updates after the run's last, for schedules"""
    batch_size: PositiveInt = 128
    """fewest samples (turns) of an update; groups stay whole"""
    steps_per_batch: PositiveInt = Field(1, description="optimizer steps per pass through a batch")
    epochs: PositiveInt = Field(1, description="passes through each batch")
    max_kl: PositiveFloat | None = None
    """mean KL (k3) of a turn to the policy before the update that ends it early; null: no limit"""
    ema: Decay | None = None
    """decay per update of a running mean of the LoRA, saved with each version; null: none"""
    micro_batch_size: PositiveInt | Literal["auto"] = "auto"
    """samples per pass; auto: 16, on a GPU as tokens allow; never changes the gradient"""
    micro_batch_tokens: PositiveInt | None = None
    """tokens per pass, on a GPU shared ones once; null: by micro_batch_size, GPU and auto: 16384"""
    gradient_checkpointing: Switch = "auto"
    """recompute activations to save memory; auto: only if they do not fit"""
    compile: bool = Field(False, description="torch.compile the model's layers")
    grad_clip: PositiveFloat = Field(1.0, description="largest gradient norm")
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
                f"steps_per_batch = {self.steps_per_batch} is more than batch_size = "
                f"{self.batch_size} has samples for; set learner.steps_per_batch to at most that"
            )
        return self

    @model_validator(mode="after")
    def _falls_by_schedule(self) -> Self:
        if self.schedule == "constant":
            why = "is of no use in a constant schedule; set learner.schedule to linear or cosine"
            self.refuse("final_rate", why)
            self.refuse("decay_fraction", why)
        return self
