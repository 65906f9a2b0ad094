"""The sections of the algorithms that learn which answers are the better ones."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from unstable.config.algorithm import NO_RATIO, BuiltInConfig
from unstable.config.base import NonNegativeFloat, PositiveFloat

_NO_KL_REWARD = "takes rewards only to tell the better answer; set learner.algorithm.{} instead"
_UNLIKE_REWARDS = {
    "kl_reward": _NO_KL_REWARD.format("beta or learner.algorithm.kl_loss"),
    "kl_opponents": "takes rewards only to tell the better answer; leave it out",
    "top_advantage_fraction": "weighs all alike; leave it out",
}
_LABEL_SMOOTHING = "share of the pairs that are taken to be the wrong way round"
_LENGTH_WEIGHT = (
    "what each token of an answer costs it (R-DPO's alpha), so that length alone is not preferred; "
    "0: nothing"
)
LabelSmoothing = Annotated[float, Field(ge=0, lt=0.5)]


class PairsConfig(BuiltInConfig):
    """Algorithms that learn which of two answers to one prompt is the better."""

    grouped: ClassVar[bool] = True
    takes_any_answers: ClassVar[bool] = True
    takes_pairs: ClassVar[bool] = True
    reads_reference: ClassVar[bool] = True
    without = NO_RATIO | _UNLIKE_REWARDS
    beta: PositiveFloat = Field(
        0.1, description="weight of an answer's log-ratio to the reference: what holds it there"
    )
    pairs: Literal["group", "position"] = Field(
        "group",
        description="what is compared: a group's trajectories, where they first answer one prompt "
        "differently, or all answers of the batch to one prompt, by their mean rewards",
    )
    margin: NonNegativeFloat = Field(
        0.0, description="least difference of rewards that makes a pair; 0: any"
    )
    sft_weight: NonNegativeFloat = Field(
        0.0, description="weight of the chosen answer's mean -log-probability a token; 0: none"
    )

    @property
    def needs_groups(self) -> bool:
        """Return whether it compares the trajectories of a group."""
        return self.pairs == "group"


class DPOConfig(PairsConfig):
    """Direct preference optimisation; with label smoothing cDPO, with a length weight R-DPO."""

    name: Literal["dpo"] = Field("dpo", description="the algorithm")
    label_smoothing: LabelSmoothing = Field(0.0, description=_LABEL_SMOOTHING)
    length_weight: NonNegativeFloat = Field(0.0, description=_LENGTH_WEIGHT)


class IPOConfig(PairsConfig):
    """A fixed margin between the answers' mean log-ratios a token."""

    name: Literal["ipo"] = Field("ipo", description="the algorithm")
    beta: PositiveFloat = Field(0.1, description="the margin is 1 / (2 beta) nats a token")


class SLiCConfig(PairsConfig):
    """A hinge: pairs that are far enough apart are left alone."""

    name: Literal["slic"] = Field("slic", description="the algorithm")
    beta: PositiveFloat = Field(0.1, description="pairs 1 / beta nats apart are left alone")
    length_weight: NonNegativeFloat = Field(0.0, description=_LENGTH_WEIGHT)


class SimPOConfig(PairsConfig):
    """Mean log-probabilities a token, without a reference."""

    reads_reference: ClassVar[bool] = False
    without = NO_RATIO | _UNLIKE_REWARDS | {"kl_reward": _NO_KL_REWARD.format("kl_loss")}
    name: Literal["simpo"] = Field("simpo", description="the algorithm")
    beta: PositiveFloat = Field(2.0, description="weight of an answer's mean log-probability")
    gamma: NonNegativeFloat = Field(
        1.0, description="by how much beta x the difference of the two should exceed 0"
    )
    label_smoothing: LabelSmoothing = Field(0.0, description=_LABEL_SMOOTHING)


class KTOConfig(BuiltInConfig):
    """Single answers that were better or worse than what was to be expected."""

    reads_reference: ClassVar[bool] = True
    takes_pairs: ClassVar[bool] = True
    without = _UNLIKE_REWARDS
    name: Literal["kto"] = Field("kto", description="the algorithm")
    beta: PositiveFloat = Field(0.1, description="weight of an answer's log-ratio to the reference")
    baseline: Literal["role", "group"] = Field(
        "role",
        description="turns are desirable whose trajectory earned more than the mean of its (env, "
        "seat) in the batch, or of its group; undesirable are those that earned less",
    )
    desirable_weight: NonNegativeFloat = Field(1.0, description="weight of the desirable turns")
    undesirable_weight: NonNegativeFloat = Field(1.0, description="weight of the undesirable ones")

    @property
    def needs_groups(self) -> bool:
        """Return whether it compares the trajectories of a group."""
        return self.baseline == "group"

    @model_validator(mode="after")
    def _some_weight(self) -> Self:
        if not self.desirable_weight and not self.undesirable_weight:
            raise ValueError(
                "desirable_weight = 0 and undesirable_weight = 0 leave nothing to learn; set one "
                "of them above 0"
            )
        return self
