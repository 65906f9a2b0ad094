"""What the sections of all algorithms have."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from unstable.config.base import Arguments, NonNegativeFloat, PositiveFloat, Section, Share
from unstable.config.regularization import DecayConfig, ReferenceConfig, TeacherConfig

MovesKept = Literal["none", "legal", "expert"]
"""What is kept of a position's moves: nothing, the legal ones, or also an expert's mix of them."""


class AlgorithmConfig(Section):
    """What all algorithms have."""

    grouped: ClassVar[bool] = False
    """Whether it compares a group's trajectories, and so learns nothing from groups of one."""
    takes_any_answers: ClassVar[bool] = False
    """Whether it may learn from answers that were not chosen as the policy samples them."""
    moves: ClassVar[MovesKept] = "none"
    """What it needs of each turn's position: nothing, its legal moves, or an expert's mix too."""
    reads_reference: ClassVar[bool] = False
    """Whether its own loss has the reference's log-probabilities, whatever KL is asked for."""
    without: ClassVar[dict[str, str]] = {}
    """Fields of all algorithms that have no meaning in this one, with the reason and the remedy."""

    takes_pairs: ClassVar[bool] = False
    """Whether it learns from pairs of a person's own, which nobody has sampled."""

    name: str = Field(description="the algorithm, or package.module:Class of your own")
    kl_reward: NonNegativeFloat = Field(
        0.0,
        description="weight of a turn's KL to the reference, or a trajectory's where these "
        "are compared, taken off the reward; 0: none",
    )
    kl_opponents: bool = Field(
        False,
        description="a turn's reward has the KL of its game's later turns too, taken off for the "
        "seat's own and added for the other's (R-NaD); for two seats of which one wins what the "
        "other loses; needs kl_reward",
    )
    kl_loss: NonNegativeFloat = Field(
        0.0,
        description="weight of a move's KL to the reference in the loss, in reward a nat; 0: none",
    )
    kl_estimator: Literal["exact", "k3"] = Field(
        "exact",
        description="the loss has KL(now || reference) over all words, or k3 of the sampled ones",
    )
    reference: ReferenceConfig = ReferenceConfig()
    teacher: TeacherConfig = TeacherConfig()
    entropy: NonNegativeFloat = Field(
        0.0, description="weight of a move's entropy in the loss, in reward a nat; 0: none"
    )
    decay: DecayConfig = DecayConfig()
    importance_cap: PositiveFloat = Field(
        2.0, description="upper bound of a token's importance weight"
    )
    reward_clip: tuple[float, float] | None = Field(
        None, description="lowest and highest reward of a turn, before any KL; null: no bounds"
    )
    truncated_weight: Share = Field(
        1.0,
        description="weight of the gradient of turns that were cut at sampling.max_tokens; 0: none",
    )
    top_advantage_fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="share of a batch that is trained on, by the largest |advantage|"
    )
    old_logprobs: Literal["learner", "engine"] = Field(
        "learner",
        description="what a ratio refers to: the policy that the update began with, scored in a "
        "pass of its own, or what the engine sampled from, at no cost",
    )

    def why_not_offline(self) -> str | None:
        """Return why it cannot be trained on recorded games, with the remedy; None: it can.

        Their samples may be of any policy, so that whoever weighs one by an advantage has to
        correct for how much likelier it was to that policy.
        """
        return None

    @property
    def moves_needed(self) -> MovesKept:
        """`moves`, where that depends on the settings."""
        return self.moves

    @property
    def needs_groups(self) -> bool:
        """Return whether, as it is set, it learns nothing from groups of one."""
        return self.grouped

    @property
    def uses_kl(self) -> bool:
        """Return whether a KL is asked for."""
        return self.kl_reward > 0 or self.kl_loss > 0

    @property
    def uses_reference(self) -> bool:
        """Return whether the reference is scored: for a KL, or for the algorithm's own loss."""
        return self.uses_kl or self.reads_reference

    @property
    def uses_exact_kl(self) -> bool:
        """Return whether the loss has a KL over all words."""
        return self.kl_loss > 0 and self.kl_estimator == "exact"

    @property
    def uses_teacher(self) -> bool:
        """Return whether there is another policy to learn from."""
        return self.teacher.adapter is not None

    @model_validator(mode="after")
    def _has_a_meaning(self) -> Self:
        for name, why in self.without.items():
            self.refuse(name, f"does nothing in {self.name}, which {why}")
        if self.kl_opponents and not self.kl_reward:
            raise ValueError(
                "kl_opponents = true needs a weight; set learner.algorithm.kl_reward above 0"
            )
        moved = self.reference.moved
        if moved and not self.uses_reference:
            raise ValueError(
                f"reference.{moved} moves what no KL refers to; set learner.algorithm.kl_loss or "
                "learner.algorithm.kl_reward above 0"
            )
        lowered = self.uses_kl or self.uses_teacher or self.entropy
        if self.decay.rule != "constant" and not lowered:
            raise ValueError(
                f"decay.rule = '{self.decay.rule}' has nothing to lower; set "
                "learner.algorithm.kl_loss, .kl_reward or .entropy above 0, or .teacher.adapter"
            )
        return self

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.reward_clip is not None and self.reward_clip[0] >= self.reward_clip[1]:
            raise ValueError(
                f"reward_clip = {list(self.reward_clip)} leaves all rewards equal; "
                "give the lower bound first"
            )
        return self


class BuiltInConfig(AlgorithmConfig):
    """An algorithm of ours, or a user's class that takes its settings."""

    target: str | None = Field(
        None, description="package.module:Class of your own that extends the algorithm"
    )
    args: Arguments = Field({}, description="whatever your class reads from config.args")

    @model_validator(mode="after")
    def _args_of_target(self) -> Self:
        if self.args and self.target is None:
            raise ValueError(
                f"args = {self.args} is for a class of your own; name it as "
                "learner.algorithm.target, or leave args out"
            )
        return self


NO_RATIO = {"old_logprobs": "has no ratio to an old policy; leave it out"}
"""Why `old_logprobs` does nothing in some of them."""
