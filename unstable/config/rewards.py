"""Reward terms, and the buffer that holds what they judged."""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, model_validator

from unstable.config.base import (
    Arguments,
    Auto,
    NonNegativeInt,
    PathText,
    PositiveFloat,
    PositiveInt,
    RunName,
    Section,
)
from unstable.config.oracles import ORACLES, JudgeOracle, OracleConfig, TeacherOracle


def judge_adapter(term: str) -> str:
    """The name under which an engine serves the adapter of a judge, by its term's name."""
    return f"judge:{term}"


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


_ARGS: dict[str, type[Section]] = {**ORACLES, "length": LengthTerm, "overlong": OverlongTerm}


class RewardConfig(Section):
    """A reward term."""

    term: str = Field(
        "outcome",
        description="outcome, format, invalid_move, length (tokens), overlong (-1 to 0 near a "
        "limit), expert (how likely it makes the move), an oracle (http, judge, reward_model, "
        "teacher), or module:function of (result, turn) for a turn's reward, of (result, seat) for "
        "a whole trajectory's; it may be async",
    )
    name: RunName | None = Field(None, description="name in metrics and files; default: the term")
    weight: float = Field(1.0, description="what the term's raw value is multiplied by")
    args: Arguments = Field({}, description="arguments for the term; an oracle's settings")
    judges: Literal["auto", "turn", "seat"] = Field(
        "auto",
        description="what an oracle judges: each turn (auto of a teacher), or a seat's whole "
        "trajectory (auto of the others); a function says it by its second argument",
    )
    at_once: PositiveInt = Field(
        16, description="calls of an async term in flight at a time, shared out over the actors"
    )
    batch: PositiveInt = Field(64, description="most items that an oracle is asked in one call")
    timeout: PositiveFloat = Field(
        60.0, description="seconds for a call of the user's own term; then it has failed"
    )
    retries: NonNegativeInt | Auto = Field(
        "auto",
        description="further calls after one of an async term that failed, after longer and "
        "longer pauses; auto: 2 of an oracle, none of a function",
    )
    on_failure: Literal["drop", "zero", "last"] = Field(
        "drop",
        description="what an async term is worth that has failed for good: drop (its game has "
        "failed too), zero, or last (the last value known of the env's seat, zero before one is)",
    )
    cache: Literal["auto", "none", "memory", "run"] | PathText = Field(
        "auto",
        description="answers kept by what was asked: none, memory (of each actor), run (a file in "
        "the run's folder too), or a file of your own, which runs may share; auto: memory of an "
        "oracle, none of a function",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.term in _ARGS:
            self._read_args()
        if self.term in ORACLES:
            oracle = self.oracle
            if self.judges == "turn" and getattr(oracle, "mode", None) == "pairwise":
                raise ValueError(
                    "judges = 'turn', but args.mode = 'pairwise' compares whole plays; set judges "
                    "to seat"
                )
            if self.judges == "seat" and isinstance(oracle, TeacherOracle):
                raise ValueError("judges = 'seat', but a teacher judges each turn; leave it out")
        else:
            self.refuse("judges", "is an oracle's; a function says it by its second argument")
        return self

    def _read_args(self) -> Section:
        from unstable.config.reading import one_line  # which reads whole configs

        try:
            return _ARGS[self.term].model_validate(self.args)
        except ValidationError as error:
            line = one_line(error, self.args)
            joint = ": " if line.startswith("unknown key") else "."
            raise ValueError(f"args{joint}{line}") from None

    @property
    def key(self) -> str:
        """Its name in metrics and files."""
        return self.name or self.term

    @property
    def oracle_judges(self) -> Literal["turn", "seat"]:
        """What the oracle judges."""
        is_teacher = isinstance(self.oracle, TeacherOracle)
        return "turn" if self.judges == "turn" or is_teacher else "seat"

    @cached_property
    def oracle(self) -> OracleConfig | None:
        """The settings of an oracle; None: the term is none."""
        found = self._read_args() if self.term in ORACLES else None
        assert found is None or isinstance(found, OracleConfig)
        return found


class BestOfConfig(Section):
    """Playing the best of several answers to each turn, by what a judge says of them."""

    answers: PositiveInt = Field(
        1, description="answers that are sampled for each turn; 1: the only one is played"
    )
    judge: RewardConfig | None = Field(
        None,
        description="the term of a turn that values each: an oracle, or an async function; it is "
        "told of the observation and the answer, and of no other turn",
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

    def judge_of(self, place: str) -> RewardConfig | None:
        """The judge, as it is named in metrics and files; `place` is that of the settings."""
        if self.judge is None:
            return None
        judges = "turn" if self.judge.oracle is not None else "auto"
        return self.judge.model_copy(update={"name": f"best_of.{place}", "judges": judges})


def adapters_of(judges: Mapping[str, RewardConfig]) -> dict[str, tuple[str, Path]]:
    """LoRA adapters that the engine has to serve as judges: field and folder by its name.

    `judges` are terms by their field.
    """
    found = {}
    for field, reward in judges.items():
        oracle = reward.oracle
        if isinstance(oracle, JudgeOracle) and oracle.adapter_folder is not None:
            found[judge_adapter(reward.key)] = f"{field}.args.engine", oracle.adapter_folder
    return found


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
