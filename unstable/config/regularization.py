"""Sections of what holds a policy near another: a reference that may move, or a teacher."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from unstable.config.base import PathText, PositiveFloat, PositiveInt, Section, Share

Decay = Annotated[float, Field(gt=0, lt=1)]
Divergence = Literal["reverse", "forward", "jsd"]
"""KL(policy || other), KL(other || policy), or the generalised Jensen-Shannon divergence."""


class DecayConfig(Section):
    """How the weights of KL and entropy fall, update by update."""

    rule: Literal["constant", "linear", "power"] = Field(
        "constant",
        description="kl_loss, kl_reward, entropy and teacher.weight stay, fall linearly over the "
        "run's updates, or are multiplied by n^-exponent in update n, from 1",
    )
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
    """Return whether the policy that a KL refers to stays the one that the run began with."""

    every: PositiveInt | None = Field(
        None, description="it becomes the policy after every so many updates; null: never"
    )
    ema: Decay | None = Field(
        None,
        description="after each update its weights are ema x their own + (1 - ema) x the "
        "policy's; null: they are not",
    )

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

    adapter: PathText | None = Field(
        None,
        description="folder of a LoRA of the same base model and shape, such as a checkpoint's; "
        "null: no teacher, or in distill the game's expert",
    )
    weight: PositiveFloat = Field(
        1.0,
        description="weight of a move's divergence from the teacher in the loss, in reward a nat",
    )
    divergence: Divergence = Field(
        "reverse",
        description="over all words: reverse: KL(policy || teacher); forward: "
        "KL(teacher || policy); jsd: the generalised Jensen-Shannon divergence",
    )
    beta: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.5, description="the teacher's share of the mixture in jsd"
    )

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
        """Folder of the adapter."""
        return None if self.adapter is None else Path(self.adapter).expanduser()
