"""The guard of a run: what it watches for, and what an alarm leads to."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from unstable.config.base import NonNegativeFloat, PositiveFloat, PositiveInt, Section
from unstable.config.opponents import DrawConfig

Action = Literal["warn", "opponents", "learning_rate", "rollback"]
Fraction = Annotated[float, Field(gt=0, lt=1)]


class GuardDrawConfig(DrawConfig):
    """How often each kind of opponent is drawn after an alarm."""

    self: NonNegativeFloat = Field(
        0.25, description="share of games against the current policy, once `opponents` has acted"
    )
    past: NonNegativeFloat = Field(0.5, description="share against a past version from then on")
    fixed: NonNegativeFloat = Field(0.25, description="share against a fixed opponent from then on")


class GuardConfig(Section):
    """What is watched after each update; a threshold of null is not. Its page is docs/guard.md."""

    action: list[Action] = Field(
        ["warn"],
        description="what an alarm leads to besides its report: warn (nothing), opponents, "
        "learning_rate, rollback, or several of them; []: nothing is watched",
    )
    patience: PositiveInt = Field(
        10,
        description="updates without an alarm after an action, or without the same one after a "
        "warning",
    )
    factor: Fraction = Field(
        0.5, description="what the learning rate is multiplied by, by learning_rate"
    )
    opponents: GuardDrawConfig = GuardDrawConfig()
    entropy: Fraction | None = Field(
        0.1, description="alarm: entropy of tokens or actions below this share of the start's"
    )
    entropy_fall: Fraction | None = Field(
        0.5, description="alarm: entropy below this share of what it was ten updates before"
    )
    kl_sampling: PositiveFloat | None = Field(
        0.1, description="alarm: KL to the policy that sampled above this, in nats a turn"
    )
    kl_reference: PositiveFloat | None = Field(
        3.0, description="alarm: KL to the start above this, in nats a turn"
    )
    length: Annotated[float, Field(gt=1)] | None = Field(
        1.5, description="alarm: answers longer than this times their least length so far"
    )
    truncation: Fraction | None = Field(
        0.05, description="alarm: share of answers cut at max_tokens, above the least so far"
    )
    forfeits: Fraction | None = Field(
        0.1, description="alarm: share of results that were forfeited, above the least so far"
    )
    draws: Fraction | None = Field(
        0.3,
        description="alarm: share of draws with itself, above the least so far, with a score "
        "below the best",
    )
    tied: Fraction | None = Field(
        0.95, description="alarm: share of groups whose trajectories all earned the same"
    )
    score: PositiveFloat | None = Field(
        3.0,
        description="alarm: score against any of eval.opponents below the best so far, by so many "
        "standard errors of each",
    )
    evaluations: PositiveInt = Field(
        3, description="evaluations in a row whose mean is such a score"
    )

    @field_validator("action", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value
