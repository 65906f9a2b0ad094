"""Reward terms, the judges that they and `best_of` may name, and the buffer of what they judged.

Judges value plays by asking something else than the game; `rewards/oracles/` asks them.
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
"""What a template may have in braces, of a turn or a whole game."""
PAIR_PLACES = ("env", "rules", "first", "second")
"""The same of two plays that are compared."""


class LLMOracle(Section):
    """A language model that judges, behind an OpenAI-compatible endpoint or in our own engine."""

    engine: PathText | None = None
    """base, or the folder of a LoRA adapter of the base: the run's own engine judges; default: the
    endpoint"""
    model: str | None = Field(None, description="model name at the endpoint")
    base_url: str = Field("https://api.openai.com/v1", description="an OpenAI-compatible endpoint")
    api_key_env: str = "OPENAI_API_KEY"
    """the environment variable that holds the key"""
    extra: Arguments = Field({}, description="further parameters of an endpoint's request")
    mode: Literal["absolute", "pairwise"] = "absolute"
    """absolute: a number for each play; pairwise: two are compared, in both orders, and the value
    is the share of comparisons won"""
    template: str | None = Field(
        None,
        description=f"what the judge is asked, with {', '.join(f'{{{p}}}' for p in PLACES)}, or "
        f"pairwise with {', '.join(f'{{{p}}}' for p in PAIR_PLACES)}; default: docs/feedback.md",
    )
    scale: Annotated[list[float], Field(min_length=2, max_length=2)] = [0.0, 10.0]
    """least and greatest number that an absolute verdict may be"""
    votes: PositiveInt = Field(1, description="verdicts that are asked for; their mean counts")
    temperature: NonNegativeFloat | None = None
    """the judge's sampling temperature; default: 0, with several votes 1"""
    max_tokens: PositiveInt = Field(512, description="longest reply of the judge, in tokens")
    max_characters: PositiveInt = 12_000
    """of a transcript the last so many are shown"""
    price_prompt: NonNegativeFloat = 0.0
    """price of a million tokens of prompts, for judge/<term>/spend"""
    price_reply: NonNegativeFloat = 0.0
    """price of a million tokens of replies, likewise"""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.engine is None) == (self.model is None):
            raise ValueError(
                "engine and model: give one of them, model for an endpoint, engine for the run's "
                "own engine"
            )
        check_url(self.base_url, "base_url")
        check_keyless(self.api_key_env, self.base_url)
        check_extra(self.extra)
        places = PLACES if self.mode == "absolute" else PAIR_PLACES
        check_template(self.template, places, self.needed)
        if self.scale[0] >= self.scale[1]:
            raise ValueError(f"scale = {self.scale}: give the least number, then the greatest")
        return self

    @property
    def needed(self) -> tuple[str, ...]:
        """Names that a template has to have."""
        return () if self.mode == "absolute" else ("first", "second")

    @property
    def sampling_temperature(self) -> float:
        """The temperature that a judge answers at."""
        if self.temperature is None:
            return 0.0 if self.votes == 1 else 1.0
        return self.temperature

    @property
    def adapter_folder(self) -> Path | None:
        """The LoRA adapter that the engine has to serve for it, if any."""
        if self.engine in (None, "base"):
            return None
        return Path(str(self.engine)).expanduser()

    @property
    def adapter_name(self) -> str:
        """The name under which the engine serves that adapter."""
        return f"judge:{self.engine}"


class RewardModelOracle(Section):
    """A sequence classifier of Hugging Face, in the actor's process."""

    path: PathText = Field(description="local folder of the model and its tokenizer")
    template: str | None = Field(
        None,
        description=f"the text that is scored, with {', '.join(f'{{{p}}}' for p in PLACES)}; "
        "default: the chat of observation and answer by the tokenizer's chat template",
    )
    label: NonNegativeInt = Field(0, description="which of the model's outputs is the value")
    max_tokens: PositiveInt = Field(2048, description="of a longer text the last so many count")
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """where it computes; auto: a GPU with twice its size free, else cpu"""

    @model_validator(mode="after")
    def _templated(self) -> Self:
        check_template(self.template, PLACES, ())
        return self

    @property
    def folder(self) -> Path:
        """Folder of the model."""
        return Path(self.path).expanduser()


class TeacherOracle(Section):
    """A model behind an endpoint that says how likely it would have given an answer."""

    url: str = Field(description="the endpoint, such as http://localhost:8000/v1")
    model: str = Field(description="model name at the endpoint, of the policy's tokenizer")
    api_key_env: str | None = None
    """the environment variable that holds the key; default: none"""
    max_bytes: PositiveInt = Field(2**24, description="the longest reply that is read, in bytes")

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
"""By the kind of their judge."""


class JudgeConfig(Section):
    """A judge of turns or whole plays, and the limits of its calls."""

    kind: str
    """llm, reward_model, teacher, or module:function of (result, turn) for a turn, of (result,
    seat) for a whole trajectory; it may be async"""
    args: Arguments = Field({}, description="the kind's settings; arguments for a function")
    at_once: PositiveInt = 16
    """calls in flight at a time, shared out over the actors"""
    batch: PositiveInt = Field(64, description="most items that are asked about in one call")
    timeout: PositiveFloat = Field(60.0, description="seconds for a call; then it has failed")
    retries: NonNegativeInt | Auto = "auto"
    """further calls after one that failed, after longer and longer pauses; auto: 2, none of a
    function"""
    on_failure: Literal["drop", "zero", "last"] = "drop"
    """the value of what has failed for good: drop (its game has failed too), zero, or last (the
    last value known of the env's seat, zero before one is)"""
    cache: Literal["auto", "none", "memory", "run"] | PathText = "auto"
    """answers kept by what was asked: none, memory (of each actor), run (a file in the run's folder
    too), or a file of your own, which runs may share; auto: memory, none of a function"""

    @model_validator(mode="after")
    def _readable(self) -> Self:
        read_args(ORACLES, self.kind, self.args)
        return self

    @cached_property
    def oracle(self) -> OracleConfig | None:
        """The settings of the kind; None for a function."""
        return read_args(ORACLES, self.kind, self.args)


def read_args(kinds: Mapping[str, type[S]], kind: str, args: Arguments) -> S | None:
    """Arguments as the section of their kind; None where the kind has none.

    Raises `ValueError` that begins with "args".
    """
    if kind not in kinds:
        return None
    from unstable.config.reading import one_line  # which reads whole configs

    try:
        return kinds[kind].model_validate(args)
    except ValidationError as error:
        line = one_line(error, args)
        joint = ": " if line.startswith("unknown key") else "."
        raise ValueError(f"args{joint}{line}") from None


def check_url(url: str, field: str) -> None:
    """Raise `ValueError` for what is no address of a service."""
    if not re.match(r"https?://[^/\s]", url):
        raise ValueError(f"{field} = {url!r}: no address; write http://HOST:PORT/PATH")


def check_template(text: str | None, places: tuple[str, ...], needed: tuple[str, ...]) -> None:
    """Raise `ValueError` for a template with other words in braces than are known."""
    if text is None:
        return
    found = re.findall(r"\{(\w+)\}", text)
    for word in found:
        if word not in places:
            raise ValueError(f"template has {{{word}}}; known: {', '.join(places)}")
    for word in needed:
        if word not in found:
            raise ValueError(f"template lacks {{{word}}}; the judge would not see it")


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

    term: str = "outcome"
    """outcome, format, invalid_move, length (tokens), overlong (-1 to 0 near a limit), expert (how
    likely it makes the move), the name of a judge, or module:function of (result, turn) for a
    turn's reward, of (result, seat) for a whole trajectory's; it may be async"""
    name: RunName | None = Field(None, description="name in metrics and files; default: the term")
    weight: float = Field(1.0, description="what the term's raw value is multiplied by")
    args: Arguments = Field({}, description="arguments for the term; a judge has its own")
    judged: Literal["auto", "turn", "seat"] = "auto"
    """what a judge values: each turn (auto of a teacher), or a seat's whole trajectory (auto of the
    others); a function says it by its second argument"""

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

    answers: PositiveInt = 1
    """answers that are sampled for each turn; 1: the only one is played"""
    judge: str | None = None
    """the name of a judge, or an async module:function, that values each as a turn; it is told of
    the observation and the answer, and of no other turn"""

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

    capacity: PositiveInt | Auto = "auto"
    """samples held; the oldest whole groups leave first"""
    max_staleness: NonNegativeInt = 4
    """versions that a sample may be behind when it is trained on"""
    rewards: list[RewardConfig] = [RewardConfig()]
    """reward terms of turns and trajectories; they add up"""
