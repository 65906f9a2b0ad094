"""Opponents of the policy: a section for each kind.

`collectors/players/__init__.py` says which class plays each.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, model_validator

from unstable.config.base import Arguments, NonNegativeInt, PathText, PositiveInt, Section
from unstable.config.endpoint import check_extra, check_keyless
from unstable.config.judges import BestOfConfig


class DrawConfig(Section):
    """How often each kind of opponent is drawn."""

    self: NonNegativeFloat = 0.5
    """share of games against the current policy, all seats trained"""
    past: NonNegativeFloat = Field(0.35, description="share of games against a past version")
    fixed: NonNegativeFloat = Field(0.15, description="share of games against a fixed opponent")


class PastConfig(Section):
    """A rule by which a past version is chosen where one is met."""

    rule: str = "uniform"
    """uniform, latest, pfsp, quality, thompson, or module:function of (policy, past) -> a weight
    for each"""
    weight: PositiveFloat = 1.0
    """share of the games against past versions, relative to the other rules"""
    args: Arguments = {}
    """arguments for the rule: newest of latest (1), form (hard or even) and exponent (1) of pfsp"""


def _named(value: Any) -> Any:
    """A rule may be given by its name alone, and one alone needs no list."""
    entries = [value] if isinstance(value, str | dict) else value
    if not isinstance(entries, list):
        return entries
    return [{"rule": each} if isinstance(each, str) else each for each in entries]


class OpponentConfig(Section):
    """An opponent that never changes."""

    is_program: ClassVar[bool] = False
    """Whether its skill is fixed by a program, so that ratings can be anchored to it."""
    repeats: ClassVar[bool] = True
    """Whether it answers alike where a game is played again from its seed."""

    name: str | None = None
    """name in tables; default: made from the kind and its target"""
    weight: PositiveFloat = 1.0
    """share of the games against fixed opponents, relative to the other entries"""

    @property
    def key(self) -> str:
        """Its name in specs, tables and files."""
        return self.name or type(self).model_fields["kind"].default

    @property
    def adapter_folder(self) -> Path | None:
        """The LoRA adapter that an engine has to serve for it, if any."""
        return None

    @property
    def adapter_name(self) -> str:
        """The name under which an engine serves that adapter."""
        return f"checkpoint:{self.key}"

    @property
    def answers(self) -> int:
        """Number of answers to each of its turns, of which a judge's best is played."""
        return 1


class RandomOpponent(OpponentConfig):
    """Any legal move."""

    is_program = True
    kind: Literal["random"] = "random"
    """random, expert, rules, python, checkpoint or openai"""


class ExpertOpponent(OpponentConfig):
    """The perfect or strong player that a game comes with."""

    is_program = True
    kind: Literal["expert"] = "expert"


class RulesOpponent(OpponentConfig):
    """The passable player, by a rule of thumb, of a game that comes without an expert."""

    is_program = True
    kind: Literal["rules"] = "rules"


class PythonOpponent(OpponentConfig):
    """A user's own player."""

    is_program = True
    repeats = False  # it may draw by itself
    kind: Literal["python"] = "python"
    target: str = Field(description="module:Class, called with an observation, returns the action")

    @property
    def key(self) -> str:
        return self.name or f"python:{self.target.rpartition(':')[2]}"


class CheckpointOpponent(OpponentConfig):
    """The same base model with another adapter."""

    kind: Literal["checkpoint"] = "checkpoint"
    path: PathText = Field(description="folder of a LoRA adapter of the same base model")
    temperature: NonNegativeFloat | None = None
    """its sampling temperature; default: the game's"""
    best_of: BestOfConfig = BestOfConfig()

    @property
    def key(self) -> str:
        return self.name or f"checkpoint:{Path(self.path).name}"

    @property
    def adapter_folder(self) -> Path:
        return Path(self.path).expanduser()

    @property
    def answers(self) -> int:
        return self.best_of.answers


class OpenAIOpponent(OpponentConfig):
    """A model behind an OpenAI-compatible endpoint."""

    repeats = False
    kind: Literal["openai"] = "openai"
    model: str = Field(description="model name at the endpoint")
    base_url: str = Field("https://api.openai.com/v1", description="an OpenAI-compatible endpoint")
    api_key_env: str = "OPENAI_API_KEY"
    """the environment variable that holds the key"""
    temperature: NonNegativeFloat | None = None
    """its sampling temperature; default: the game's"""
    max_tokens: PositiveInt = 512
    """longest answer, in tokens, those of a model's hidden reasoning included"""
    extra: Arguments = {}
    """further parameters of a request, such as {reasoning_effort: low}; null leaves one out
    ({temperature: null})"""
    seeded: bool = False
    """send each turn's seed: an endpoint that heeds it, as that of unstable serve, answers as the
    same model would here"""
    timeout: PositiveFloat = Field(30.0, description="seconds that a request may take")
    max_retries: NonNegativeInt = 4
    """further requests after a time-out, a lost connection, 429 or 5xx, after longer and longer
    pauses, or as long as Retry-After says; games.turn_timeout bounds them all"""
    max_calls: PositiveInt | None = None
    """answers that are asked for in the whole run; then it plays no more"""
    max_total_tokens: PositiveInt | None = None
    """tokens of prompts and answers in the whole run; then it plays no more"""
    ledger: PathText | None = None
    """file in which calls and tokens are counted, which runs may share; default:
    endpoints/<name>.json in the run's folder"""

    @model_validator(mode="after")
    def _keyless(self) -> Self:
        check_keyless(self.api_key_env, self.base_url)
        return self

    @model_validator(mode="after")
    def _extra_is_further(self) -> Self:
        check_extra(self.extra)
        return self

    @property
    def key(self) -> str:
        return self.name or f"openai:{self.model}"

    @property
    def is_capped(self) -> bool:
        """Return whether calls and tokens have to be counted."""
        return self.max_calls is not None or self.max_total_tokens is not None


FixedOpponent = (
    RandomOpponent
    | ExpertOpponent
    | RulesOpponent
    | PythonOpponent
    | CheckpointOpponent
    | OpenAIOpponent
)
OPPONENT_KINDS: list[str] = [kind.model_fields["kind"].default for kind in get_args(FixedOpponent)]
BUILT_IN_OPPONENTS: list[FixedOpponent] = [RandomOpponent(), ExpertOpponent(), RulesOpponent()]
"""Opponents that need no entry in a config."""
RESERVED_NAMES = ("base", "self", "past", "fixed", "others", "alone", "person", "me")


class OpponentsConfig(Section):
    """The opponents, and how often each is drawn."""

    draw: DrawConfig = DrawConfig()
    past: Annotated[list[PastConfig], BeforeValidator(_named)] = Field([PastConfig()], min_length=1)
    """which past version is met: a rule, or several with weights"""
    fixed: list[Annotated[FixedOpponent, Field(discriminator="kind")]] = Field(
        [RandomOpponent()], description=f"opponents that never change: {', '.join(OPPONENT_KINDS)}"
    )
    pool_size: PositiveInt = 32
    """past versions kept as opponents, the newest ones"""
    pinned: list[Literal["best"] | NonNegativeInt] = []
    """past versions kept besides, once they are in the pool: numbers, and best, the one with the
    highest lower bound of its rating (mu - 3 sigma)"""

    @property
    def most_past(self) -> int:
        """Past versions in the pool, at most."""
        return self.pool_size + len(self.pinned)

    def with_ledgers(self, place: Callable[[str], Path]) -> Self:
        """Endpoints count in the file that `place` gives for their name, unless they have one."""
        fixed = [
            opponent.model_copy(update={"ledger": str(place(opponent.key))})
            if isinstance(opponent, OpenAIOpponent) and opponent.ledger is None
            else opponent
            for opponent in self.fixed
        ]
        return self.model_copy(update={"fixed": fixed})
