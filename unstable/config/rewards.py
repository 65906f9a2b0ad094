"""Reward terms, and the buffer that holds what they judged."""

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from unstable.config.base import Arguments, Auto, NonNegativeInt, PositiveInt, RunName, Section
from unstable.config.judges import JudgeConfig, read_args

Part = Literal["answer", "thought", "action"]
"""Of a turn's sampled tokens: all, those of its thought, or those after it."""


class LengthTerm(Section):
    """Arguments of `length`, whose value is a number of tokens."""

    of: Part = Field("answer", description="what is counted: the answer, its thought, or the rest")
    free: NonNegativeInt = Field(0, description="tokens that cost nothing")


class OverlongTerm(Section):
    """Arguments of `overlong`, whose value falls from 0 to -1 over the last tokens of a length."""

    of: Part = Field("answer", description="what is counted: the answer, its thought, or the rest")
    most: PositiveInt = Field(description="tokens from which on it is -1, as sampling.max_tokens")
    buffer: PositiveInt = Field(description="tokens before that over which it falls")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.buffer > self.most:
            raise ValueError(
                f"buffer = {self.buffer} is more than most = {self.most}; set it to at most that"
            )
        return self


class RewardConfig(Section):
    """A reward term."""

    term: str = Field(
        "outcome",
        description="outcome, format, invalid_move, length (tokens), overlong (-1 to 0 near a "
        "limit), expert (how likely it makes the move), the name of a judge, or module:function "
        "of (result, turn) for a turn's reward, of (result, seat) for a whole trajectory's; it "
        "may be async",
    )
    name: RunName | None = Field(None, description="name in metrics and files; default: the term")
    weight: float = Field(1.0, description="what the term's raw value is multiplied by")
    args: Arguments = Field({}, description="arguments for the term; a judge has its own")
    judged: Literal["auto", "turn", "seat"] = Field(
        "auto",
        description="what a judge values: each turn (auto of a teacher), or a seat's whole "
        "trajectory (auto of the others); a function says it by its second argument",
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        kinds: dict[str, type[Section]] = {"length": LengthTerm, "overlong": OverlongTerm}
        read_args(kinds, self.term, self.args)
        return self

    @property
    def key(self) -> str:
        """Its name in metrics and files."""
        return self.name or self.term

    def judge_in(self, judges: Mapping[str, JudgeConfig]) -> JudgeConfig:
        """The judge that the term names, or a function as one that is asked as by default."""
        own = JudgeConfig.model_construct(kind=self.term, args=self.args)
        return judges.get(self.term, own)


class BestOfConfig(Section):
    """Playing the best of several answers to each turn, by what a judge says of them."""

    answers: PositiveInt = Field(
        1, description="answers that are sampled for each turn; 1: the only one is played"
    )
    judge: str | None = Field(
        None,
        description="the name of a judge, or an async module:function, that values each as a turn; "
        "it is told of the observation and the answer, and of no other turn",
    )

    @model_validator(mode="after")
    def _judged(self) -> Self:
        if self.answers > 1 and self.judge is None:
            raise ValueError(
                f"answers = {self.answers}, but nothing says which is the best; name a judge"
            )
        if self.answers == 1 and self.judge is not None:
            raise ValueError("judge has nothing to choose from; set answers to 2 or more")
        return self


class BufferConfig(Section):
    """What lies between play and learning."""

    capacity: PositiveInt | Auto = Field(
        "auto", description="samples held; the oldest whole groups leave first"
    )
    max_staleness: NonNegativeInt = Field(
        4, description="versions that a sample may be behind when it is trained on"
    )
    rewards: list[RewardConfig] = Field(
        [RewardConfig()], description="reward terms of turns and trajectories; they add up"
    )
