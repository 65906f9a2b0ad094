"""How the policy is trained, but for the algorithm's own settings."""

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from unstable.config.algorithm import Decay
from unstable.config.algorithms import ALGORITHMS, AnyAlgorithm, ReinforceConfig
from unstable.config.base import Auto, NonNegativeInt, PathText, PositiveInt, Section, Share, Switch

_SAMPLES = 16
"""Samples of a micro-batch on the processor, where the config leaves it open."""
_TOKENS = 16384
"""Tokens of one on a GPU: a pass of so many is arithmetic, not the launching of kernels."""


class LearnerConfig(Section):
    """How the policy is trained."""

    num: PositiveInt | Auto = "auto"
    """learner ranks; auto: about half of the cards, or the nearest number that fits"""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """each rank holds the whole base model (ddp) or a shard of it (fsdp)"""
    algorithm: AnyAlgorithm = Field(
        ReinforceConfig(), description=f"by its name: {', '.join(ALGORITHMS)}, or module:Class"
    )
    state: PathText | None = None
    """a checkpoint of a run whose optimizer, baselines and reference training begins with, beside
    model.init; null: new ones"""
    learning_rate: PositiveFloat = Field(1.0e-4, description="AdamW's peak learning rate")
    weight_decay: NonNegativeFloat = Field(0.0, description="AdamW's weight decay")
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """learning rate after the warm-up"""
    final_rate: Share = 0.0
    """share of the peak at which the linear and the cosine schedule end"""
    decay_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """share of all updates over which the schedule goes to its end"""
    warmup_steps: NonNegativeInt = 0
    """optimizer steps over which the learning rate rises"""
    env_weights: Literal["equal", "spread"] = "equal"
    """what samples of several envs count: equal, or spread: in proportion to the standard deviation
    of a seat's rewards in the batch, the largest being 1"""
    updates_before: NonNegativeInt = 0
    """updates made before the run's first, where it is a part of a longer training: schedules and
    algorithm.reference.every count them too"""
    updates_after: NonNegativeInt = 0
    """updates that are made after its last one, for schedules"""
    batch_size: PositiveInt = 128
    """samples (turns) of an update, at least: groups stay whole"""
    steps_per_batch: PositiveInt = Field(1, description="optimizer steps made out of one batch")
    epochs: PositiveInt = Field(1, description="times that a batch is gone through")
    max_kl: PositiveFloat | None = None
    """the first step that finds a turn's mean KL (k3) from the policy that the update began with to
    be above this is the update's last; null: all are made"""
    ema: Decay | None = None
    """decay, an update, of a running mean of the LoRA's weights, which is saved beside each
    version; null: none"""
    micro_batch_size: PositiveInt | Literal["auto"] = "auto"
    """samples put through at a time; auto: 16, on a GPU as many as tokens allow; never changes the
    gradient"""
    micro_batch_tokens: PositiveInt | None = None
    """tokens put through at a time, prompts included, on a GPU shared ones once; null: as many as
    micro_batch_size samples have, if they fit; on a GPU with auto 16384"""
    gradient_checkpointing: Switch = "auto"
    """recompute activations to save memory; auto: where they do not fit"""
    compile: bool = Field(False, description="torch.compile the model's layers")
    grad_clip: PositiveFloat = Field(1.0, description="largest gradient norm")
    max_bad_updates: PositiveInt = 3
    """updates in a row whose loss or gradient is not finite before the run stops"""

    @property
    def steps_per_update(self) -> int:
        """Optimizer steps of an update, unless `max_kl` ends it."""
        return self.epochs * self.steps_per_batch

    def micro_batch_limits(self, *, on_gpu: bool) -> tuple[int | None, int | None]:
        """Most samples and most tokens that are put through at a time; None: not bounded."""
        if self.micro_batch_size != "auto":
            return self.micro_batch_size, self.micro_batch_tokens
        if on_gpu:
            return None, self.micro_batch_tokens or _TOKENS
        return _SAMPLES, self.micro_batch_tokens

    def with_smaller_micro_batches(self, halvings: int) -> Self:
        """The same with bounds that were halved so often, of tokens too where no size is given."""
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
