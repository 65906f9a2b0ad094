"""What the sections of all algorithms have: what holds a policy near another, and the rest."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from unstable.config.base import Arguments, PathText, PositiveInt, Section, Share

MovesKept = Literal["none", "legal", "expert"]
"""What is kept of a position's moves: nothing, the legal ones, or also an expert's mix of them."""
Decay = Annotated[float, Field(gt=0, lt=1)]
Divergence = Literal["reverse", "forward", "jsd"]
"""KL(policy || other), KL(other || policy), or the generalised Jensen-Shannon divergence."""


class DecayConfig(Section):
    """How the weights of KL and entropy fall, update by update."""

    rule: Literal["constant", "linear", "power"] = "constant"
    """kl_loss, kl_reward, entropy and teacher.weight stay, fall linearly over the run's updates, or
    are multiplied by n^-exponent in update n, from 1"""
    to: Share = Field(0.0, description="share of the weights at which the linear rule ends")
    exponent: PositiveFloat = Field(0.3, description="exponent of the power rule")

    @model_validator(mode="after")
    def _read_by_rule(self) -> Self:
        for name, rule in (("to", "linear"), ("exponent", "power")):
            if self.rule != rule:
                remedy = f"set learner.algorithm.decay.rule to {rule}, or leave it out"
                self.refuse(name, f"is for the {rule} rule alone; {remedy}")
        return self


class ReferenceConfig(Section):
    """Whether the policy that a KL refers to stays the one that the run began with."""

    every: PositiveInt | None = None
    """it becomes the policy after every so many updates; null: never"""
    ema: Decay | None = None
    """after each update its weights are ema x their own + (1 - ema) x the policy's; null: they are
    not"""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.every is not None and self.ema is not None:
            raise ValueError(
                f"every = {self.every} and ema = {self.ema} both move it; leave one of them out"
            )
        return self

    @property
    def moved(self) -> str:
        """The field that moves it, with its value; empty where it stays."""
        given = {"every": self.every, "ema": self.ema}
        return "".join(f"{name} = {value}" for name, value in given.items() if value is not None)


class TeacherConfig(Section):
    """Another policy that the trained one is to become, on the turns that it plays itself."""

    adapter: PathText | None = None
    """folder of a LoRA of the same base model and shape, such as a checkpoint's; null: no teacher,
    or in distill the game's expert"""
    weight: PositiveFloat = 1.0
    """weight of a move's divergence from the teacher in the loss, in reward a nat"""
    divergence: Divergence = "reverse"
    """over all words: reverse: KL(policy || teacher); forward: KL(teacher || policy); jsd: the
    generalised Jensen-Shannon divergence"""
    beta: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """the teacher's share of the mixture in jsd"""

    @model_validator(mode="after")
    def _read_by_divergence(self) -> Self:
        if self.adapter is None:
            for name in ("weight", "divergence", "beta"):
                self.refuse(name, "is for an adapter; name it as learner.algorithm.teacher.adapter")
        if self.divergence != "jsd":
            remedy = "set learner.algorithm.teacher.divergence to jsd, or leave it out"
            self.refuse("beta", f"is for jsd alone; {remedy}")
        return self

    @property
    def folder(self) -> Path | None:
        """Of the adapter."""
        return None if self.adapter is None else Path(self.adapter).expanduser()


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
    kl_reward: NonNegativeFloat = 0.0
    """weight of a turn's KL to the reference, or a trajectory's where these are compared, taken off
    the reward; 0: none"""
    kl_opponents: bool = False
    """a turn's reward has the KL of its game's later turns too, taken off for the seat's own and
    added for the other's (R-NaD); for two seats of which one wins what the other loses; needs
    kl_reward"""
    kl_loss: NonNegativeFloat = 0.0
    """weight of a move's KL to the reference in the loss, in reward a nat; 0: none"""
    kl_estimator: Literal["exact", "k3"] = "exact"
    """the loss has KL(now || reference) over all words, or k3 of the sampled ones"""
    reference: ReferenceConfig = ReferenceConfig()
    teacher: TeacherConfig = TeacherConfig()
    entropy: NonNegativeFloat = 0.0
    """weight of a move's entropy in the loss, in reward a nat; 0: none"""
    decay: DecayConfig = DecayConfig()
    importance_cap: PositiveFloat = 2.0
    """upper bound of a token's importance weight"""
    reward_clip: tuple[float, float] | None = None
    """lowest and highest reward of a turn, before any KL; null: no bounds"""
    truncated_weight: Share = 1.0
    """weight of the gradient of turns that were cut at sampling.max_tokens; 0: none"""
    top_advantage_fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    """share of a batch that is trained on, by the largest |advantage|"""
    old_logprobs: Literal["learner", "engine"] = "learner"
    """what a ratio refers to: the policy that the update began with, scored in a pass of its own,
    or what the engine sampled from, at no cost"""

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

    target: str | None = None
    """package.module:Class of your own that extends the algorithm"""
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
