"""Fields that the sections of all algorithms share, such as KL penalties, teacher and decay."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from unstable.config.base import Arguments, PathText, PositiveInt, Section, Share

MovesKept = Literal["none", "legal", "state", "expert"]
"""Data recorded with a position: none, the legal moves, or also the whole state or an expert's
probabilities."""
Decay = Annotated[float, Field(gt=0, lt=1)]
Divergence = Literal["reverse", "forward", "jsd"]
"""KL(policy || other), KL(other || policy), or the generalized Jensen-Shannon divergence."""


def records(kept: MovesKept, needed: MovesKept) -> bool:
    """Return whether positions that record `kept` have what is needed."""
    return needed in ("none", kept) or (needed == "legal" and kept != "none")


class DecayConfig(Section):
    """Decay of kl_loss, kl_reward, entropy and teacher.weight over the updates, from 1."""

    rule: Literal["constant", "linear", "power"] = "constant"
    """decay of KL, entropy and teacher weights: constant, linear or power (update^-exponent)"""
    to: Share = Field(0.0, description="final share of the weights under the linear rule")
    exponent: PositiveFloat = Field(0.3, description="exponent of the power rule")

    @model_validator(mode="after")
    def _read_by_rule(self) -> Self:
        for name, rule in (("to", "linear"), ("exponent", "power")):
            if self.rule != rule:
                remedy = f"set learner.algorithm.decay.rule to {rule}, or leave it out"
                self.refuse(name, f"applies only to the {rule} rule; {remedy}")
        return self


class ReferenceConfig(Section):
    """Updates of the reference policy during training."""

    every: PositiveInt | None = None
    """updates between copies of the policy to the reference; null: never"""
    ema: Decay | None = None
    """decay per update of a reference that averages the policy; null: no averaging"""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.every is not None and self.ema is not None:
            raise ValueError(
                f"every = {self.every}: conflicts with ema = {self.ema}; leave one of them out"
            )
        return self

    @property
    def moved(self) -> str:
        """Field that moves the reference, with its value; empty if the reference is fixed."""
        given = {"every": self.every, "ema": self.ema}
        return "".join(f"{name} = {value}" for name, value in given.items() if value is not None)


class TeacherConfig(Section):
    """Teacher policy that the trained policy imitates on its own turns."""

    adapter: PathText | None = None
    """folder of the teacher's LoRA, same base and shape; null: none (distill: the expert)"""
    weight: PositiveFloat = 1.0
    """loss weight of the divergence from the teacher, in reward per nat of a move"""
    divergence: Divergence = "reverse"
    """divergence: reverse KL(policy || teacher), forward KL(teacher || policy), or jsd"""
    beta: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """share of the teacher in the mixture of jsd"""

    @model_validator(mode="after")
    def _read_by_divergence(self) -> Self:
        if self.adapter is None:
            for name in ("weight", "divergence", "beta"):
                self.refuse(name, "needs a teacher; set learner.algorithm.teacher.adapter")
        if self.divergence != "jsd":
            remedy = "set learner.algorithm.teacher.divergence to jsd, or leave it out"
            self.refuse("beta", f"applies only to jsd; {remedy}")
        return self

    @property
    def folder(self) -> Path | None:
        """Folder of the teacher's adapter; None without one."""
        return None if self.adapter is None else Path(self.adapter).expanduser()


class AlgorithmConfig(Section):
    """Fields that all algorithms share."""

    grouped: ClassVar[bool] = False
    """True if the algorithm compares trajectories of a group, so that it learns nothing from groups
    of one."""
    takes_any_answers: ClassVar[bool] = False
    """True if the algorithm may learn from answers that were chosen otherwise than by sampling."""
    moves: ClassVar[MovesKept] = "none"
    """Data that each turn's position must record."""
    reads_reference: ClassVar[bool] = False
    """True if the algorithm's own loss uses the reference's log-probabilities, even without a KL
    term."""
    without: ClassVar[dict[str, str]] = {}
    """Shared fields that this algorithm refuses, with the reason and the remedy."""

    takes_pairs: ClassVar[bool] = False
    """True if the algorithm learns from a user's pairs of answers, which no policy sampled."""

    name: str = Field(description="name of the algorithm, or package.module:Class")
    kl_reward: NonNegativeFloat = 0.0
    """weight of the KL penalty on rewards of turns or compared trajectories; 0: none"""
    kl_opponents: bool = False
    """also KL of later turns, with opposite sign for the other seat (R-NaD); zero-sum games"""
    kl_loss: NonNegativeFloat = 0.0
    """loss weight of a move's KL to the reference, in reward per nat; 0: none"""
    kl_estimator: Literal["exact", "k3"] = "exact"
    """KL of the loss: exact (policy || reference, full vocabulary) or k3 (of sampled tokens)"""
    reference: ReferenceConfig = ReferenceConfig()
    teacher: TeacherConfig = TeacherConfig()
    entropy: NonNegativeFloat = 0.0
    """loss weight of a move's entropy, in reward per nat; 0: none"""
    decay: DecayConfig = DecayConfig()
    importance_cap: PositiveFloat = 2.0
    """upper bound of a token's importance weight"""
    reward_clip: tuple[float, float] | None = None
    """lowest and highest reward of a turn, before KL penalties; null: no bounds"""
    truncated_weight: Share = 1.0
    """gradient weight of turns truncated at sampling.max_tokens; 0: not trained on"""
    top_advantage_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """share of a batch's samples to train on, largest |advantage| first"""
    old_logprobs: Literal["learner", "engine"] = "learner"
    """denominator of ratios: learner (policy before the update, rescored) or engine (recorded)"""

    def why_not_offline(self) -> str | None:
        """Return why the algorithm cannot train on recorded games, with the remedy; None if it can.

        Any policy may have sampled recorded games, so an algorithm that weights samples by
        advantages must correct for the difference between the behavior policy and the trained one.
        """
        return None

    @property
    def moves_needed(self) -> MovesKept:
        """Moves that each turn's position must record with these settings."""
        return self.moves

    @property
    def needs_groups(self) -> bool:
        """True if the algorithm, with these settings, learns nothing from groups of one."""
        return self.grouped

    @property
    def uses_kl(self) -> bool:
        """True if the reward or the loss has a KL term."""
        return self.kl_reward > 0 or self.kl_loss > 0

    @property
    def uses_reference(self) -> bool:
        """True if the reference policy is scored, for a KL term or the algorithm's own loss."""
        return self.uses_kl or self.reads_reference

    @property
    def uses_exact_kl(self) -> bool:
        """True if the loss has a KL term over the whole vocabulary."""
        return self.kl_loss > 0 and self.kl_estimator == "exact"

    @property
    def uses_teacher(self) -> bool:
        """True if an adapter is the teacher."""
        return self.teacher.adapter is not None

    @model_validator(mode="after")
    def _has_a_meaning(self) -> Self:
        for name, why in self.without.items():
            self.refuse(name, f"has no effect in {self.name}, which {why}")
        if self.kl_opponents and not self.kl_reward:
            raise ValueError(
                "kl_opponents = true: kl_reward is 0; set learner.algorithm.kl_reward above 0"
            )
        moved = self.reference.moved
        if moved and not self.uses_reference:
            raise ValueError(
                f"reference.{moved}: no KL term uses it; set learner.algorithm.kl_loss or "
                "learner.algorithm.kl_reward above 0"
            )
        lowered = self.uses_kl or self.uses_teacher or self.entropy
        if self.decay.rule != "constant" and not lowered:
            raise ValueError(
                f"decay.rule = '{self.decay.rule}': no weight to decay; set "
                "learner.algorithm.kl_loss, .kl_reward or .entropy above 0, or .teacher.adapter"
            )
        return self

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        if self.reward_clip is not None and self.reward_clip[0] >= self.reward_clip[1]:
            raise ValueError(
                f"reward_clip = {list(self.reward_clip)}: lower bound not below the upper; "
                "give the lower bound first"
            )
        return self


class BuiltInConfig(AlgorithmConfig):
    """Section of a built-in algorithm, or of a user's class that extends one."""

    target: str | None = None
    """custom subclass of the algorithm, package.module:Class; null: none"""
    args: Arguments = Field({}, description="settings of a custom class, in config.args")

    @model_validator(mode="after")
    def _args_of_target(self) -> Self:
        if self.args and self.target is None:
            raise ValueError(
                f"args = {self.args}: only a custom class reads args; set "
                "learner.algorithm.target, or leave args out"
            )
        return self


NO_RATIO = {"old_logprobs": "has no ratio to an old policy; leave it out"}
"""Reason why `old_logprobs` has no effect in algorithms without a ratio."""
