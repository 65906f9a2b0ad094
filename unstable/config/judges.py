"""Reward terms, the judges that they and `best_of` may name, and the buffer.

Judges value plays by querying models, services or functions; `rewards/oracles/` implements them.
"""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal, Self, TypeVar

from pydantic import Field, NonNegativeFloat, PositiveFloat, ValidationError, model_validator

from unstable.config.base import (
    Arguments,
    Auto,
    NonNegativeInt,
    PathText,
    PositiveInt,
    RunName,
    Section,
)
from unstable.config.endpoint import check_extra, check_keyless

S = TypeVar("S", bound=Section)
PLACES = ("env", "seat", "rules", "observation", "action", "answer", "transcript", "outcome")
"""Placeholders of a template for a turn or a whole game."""
PAIR_PLACES = ("env", "rules", "first", "second")
"""Placeholders of a template that compares two plays."""


class LLMOracle(Section):
    """A language model that judges, behind an OpenAI-compatible endpoint or in the run's engine."""

    engine: PathText | None = None
    """judge in the run's engine: base, or the folder of a LoRA adapter; default: the endpoint"""
    model: str | None = Field(None, description="model name at the endpoint")
    base_url: str = Field("https://api.openai.com/v1", description="an OpenAI-compatible endpoint")
    api_key_env: str = "OPENAI_API_KEY"
    """environment variable that holds the key"""
    extra: Arguments = Field({}, description="further parameters of an endpoint's request")
    mode: Literal["absolute", "pairwise"] = "absolute"
    """absolute: a number per play; pairwise: share of comparisons won, two plays in both orders"""
    template: str | None = None
    """prompt of the judge, with placeholders; placeholders and default: docs/feedback.md"""
    scale: Annotated[list[float], Field(min_length=2, max_length=2)] = [0.0, 10.0]
    """lowest and highest number of an absolute verdict"""
    votes: PositiveInt = Field(1, description="verdicts per play, which are averaged")
    temperature: NonNegativeFloat | None = None
    """sampling temperature of the judge; default: 0, or 1 with several votes"""
    max_tokens: PositiveInt = Field(512, description="maximum tokens of the judge's reply")
    max_characters: PositiveInt = 12_000
    """maximum characters of a transcript; the last ones are kept"""
    price_prompt: NonNegativeFloat = 0.0
    """price per million prompt tokens, for judge/<term>/spend"""
    price_reply: NonNegativeFloat = 0.0
    """price per million reply tokens, for judge/<term>/spend"""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.engine is None) == (self.model is None):
            raise ValueError(
                "engine and model: give exactly one of them, model for an endpoint, engine for the "
                "run's engine"
            )
        check_url(self.base_url, "base_url")
        check_keyless(self.api_key_env, self.base_url)
        check_extra(self.extra)
        places = PLACES if self.mode == "absolute" else PAIR_PLACES
        check_template(self.template, places, self.needed)
        if self.scale[0] >= self.scale[1]:
            raise ValueError(f"scale = {self.scale}: minimum not below maximum; give it first")
        return self

    @property
    def needed(self) -> tuple[str, ...]:
        """Placeholders that a template must have."""
        return () if self.mode == "absolute" else ("first", "second")

    @property
    def sampling_temperature(self) -> float:
        """Sampling temperature of the judge."""
        if self.temperature is None:
            return 0.0 if self.votes == 1 else 1.0
        return self.temperature

    @property
    def adapter_folder(self) -> Path | None:
        """Folder of the LoRA adapter that the engine must serve for the judge; None without one."""
        if self.engine in (None, "base"):
            return None
        return Path(str(self.engine)).expanduser()

    @property
    def adapter_name(self) -> str:
        """Name under which the engine serves the judge's adapter."""
        return f"judge:{self.engine}"


class RewardModelOracle(Section):
    """A Hugging Face sequence classifier in the actor's process."""

    path: PathText = Field(description="local folder of the model and its tokenizer")
    template: str | None = None
    """text to score, with placeholders of llm; default: the chat of observation and answer"""
    label: NonNegativeInt = Field(0, description="index of the model output that is the value")
    max_tokens: PositiveInt = Field(2048, description="maximum tokens of a text; the last are kept")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """device of the model; auto: a GPU with twice the model's size free, else cpu"""

    @model_validator(mode="after")
    def _templated(self) -> Self:
        check_template(self.template, PLACES, ())
        return self

    @property
    def folder(self) -> Path:
        """Folder of the model."""
        return Path(self.path).expanduser()


class TeacherOracle(Section):
    """A model behind an endpoint that scores the probability of an answer."""

    url: str = Field(description="the endpoint, such as http://localhost:8000/v1")
    model: str = Field(description="model name at the endpoint, of the policy's tokenizer")
    api_key_env: str | None = None
    """environment variable that holds the key; default: none"""
    max_bytes: PositiveInt = Field(2**24, description="maximum bytes of a reply")

    @model_validator(mode="after")
    def _keyless(self) -> Self:
        check_url(self.url, "url")
        check_keyless(self.api_key_env, self.url, "url")
        return self


OracleConfig = LLMOracle | RewardModelOracle | TeacherOracle
ORACLES: dict[str, type[OracleConfig]] = {
    "llm": LLMOracle,
    "reward_model": RewardModelOracle,
    "teacher": TeacherOracle,
}
"""Section of each kind of judge."""


class JudgeConfig(Section):
    """A judge of turns or whole plays, and the limits of its calls."""

    kind: str
    """llm, reward_model, teacher, or (async) module:function(result, turn) or (result, seat)"""
    args: Arguments = Field({}, description="settings of the kind, or arguments of the function")
    at_once: PositiveInt = 16
    """maximum concurrent calls of all actors together"""
    batch: PositiveInt = Field(64, description="maximum items per call")
    timeout: PositiveFloat = Field(60.0, description="time limit of a call, in seconds")
    retries: NonNegativeInt | Auto = "auto"
    """retries of a failed call, with backoff; auto: 2, or 0 for a function"""
    on_failure: Literal["drop", "zero", "last"] = "drop"
    """value on final failure: drop (the game fails), zero, or last (the seat's last, else 0)"""
    cache: Literal["auto", "none", "memory", "run"] | PathText = "auto"
    """cache of answers: none, memory, run, or a shared path; auto: memory (functions: none)"""

    @model_validator(mode="after")
    def _readable(self) -> Self:
        read_args(ORACLES, self.kind, self.args)
        return self

    @cached_property
    def oracle(self) -> OracleConfig | None:
        """Settings of the judge's kind; None for a function."""
        return read_args(ORACLES, self.kind, self.args)


def read_args(kinds: Mapping[str, type[S]], kind: str, args: Arguments) -> S | None:
    """Return the arguments as the section of their kind; None if the kind has no section.

    Raises `ValueError` that begins with "args".
    """
    if kind not in kinds:
        return None
    from unstable.config.reading import one_line  # circular import

    try:
        return kinds[kind].model_validate(args)
    except ValidationError as error:
        line = one_line(error, args)
        joint = ": " if line.startswith("unknown key") else "."
        raise ValueError(f"args{joint}{line}") from None


def check_url(url: str, field: str) -> None:
    """Raise `ValueError` if a URL is not the address of a service."""
    if not re.match(r"https?://[^/\s]", url):
        raise ValueError(f"{field} = {url!r}: not an HTTP URL; write http://HOST:PORT/PATH")


def check_template(text: str | None, places: tuple[str, ...], needed: tuple[str, ...]) -> None:
    """Raise `ValueError` if a template has unknown placeholders or lacks needed ones."""
    if text is None:
        return
    found = re.findall(r"\{(\w+)\}", text)
    for word in found:
        if word not in places:
            raise ValueError(f"template: unknown {{{word}}}; use one of {', '.join(places)}")
    for word in needed:
        if word not in found:
            raise ValueError(f"template: missing {{{word}}}; add it for the judge")


Part = Literal["answer", "thought", "action"]
"""Part of a turn's sampled tokens: all, its thought, or the tokens after the thought."""


class LengthTerm(Section):
    """Arguments of the term `length`, which counts tokens."""

    of: Part = Field("answer", description="counted tokens: answer (all), thought or action (rest)")
    free: NonNegativeInt = Field(0, description="tokens without cost")


class OverlongTerm(Section):
    """Arguments of the term `overlong`, which falls from 0 to -1 near a length limit."""

    of: Part = Field("answer", description="counted tokens: answer (all), thought or action (rest)")
    most: PositiveInt = Field(description="tokens at which the term is -1 (sampling.max_tokens)")
    buffer: PositiveInt = Field(description="tokens before most over which the term falls to -1")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.buffer > self.most:
            raise ValueError(f"buffer = {self.buffer}: greater than most = {self.most}; lower it")
        return self


class RewardConfig(Section):
    """A reward term."""

    term: str = "outcome"
    """outcome, format, invalid_move, length, overlong, expert, a judge's name, module:function"""
    name: RunName | None = Field(None, description="name in metrics and files; default: the term")
    weight: float = Field(1.0, description="factor of the term's raw value")
    args: Arguments = Field({}, description="arguments of the term, unless it is a judge")
    judged: Literal["auto", "turn", "seat"] = "auto"
    """judged unit: turn, seat (a trajectory), or auto (turn for a teacher, seat for others)"""

    @model_validator(mode="after")
    def _readable(self) -> Self:
        kinds: dict[str, type[Section]] = {"length": LengthTerm, "overlong": OverlongTerm}
        read_args(kinds, self.term, self.args)
        return self

    @property
    def key(self) -> str:
        """Name of the term in metrics and files."""
        return self.name or self.term

    def judge_in(self, judges: Mapping[str, JudgeConfig]) -> JudgeConfig:
        """Return the judge that the term names, or a judge with default settings for a function."""
        own = JudgeConfig.model_construct(kind=self.term, args=self.args)
        return judges.get(self.term, own)


class BestOfConfig(Section):
    """Choice of the best of several answers to each turn by a judge."""

    answers: PositiveInt = 1
    """answers sampled per turn; 1: no choice"""
    judge: str | None = None
    """name of a judge, or async module:function, that scores an answer to an observation"""

    @model_validator(mode="after")
    def _judged(self) -> Self:
        if self.answers > 1 and self.judge is None:
            raise ValueError(f"answers = {self.answers}: no judge to choose the best; set judge")
        if self.answers == 1 and self.judge is not None:
            raise ValueError(f"judge = {self.judge!r}: only one answer; set answers to 2 or more")
        return self


class BufferConfig(Section):
    """Buffer between play and learning, and the reward terms."""

    capacity: PositiveInt | Auto = "auto"
    """maximum samples; the oldest groups are dropped; auto: batch_size x (max_staleness + 1)"""
    max_staleness: NonNegativeInt = 4
    """maximum staleness of a trained sample, in versions"""
    rewards: list[RewardConfig] = [RewardConfig()]
    """reward terms of turns and trajectories, which are summed"""
