"""Opponents of the policy: one section per kind.

`collectors/players/__init__.py` maps each kind to the class that plays it.
"""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat, model_validator

from unstable.config.base import Arguments, NonNegativeInt, PathText, PositiveInt, Section
from unstable.config.endpoint import check_extra, check_keyless
from unstable.config.judges import BestOfConfig


class DrawConfig(Section):
    """Shares of each kind of opponent."""

    self: NonNegativeFloat = 0.5
    """share of games against the current policy, all seats trained"""
    past: NonNegativeFloat = Field(0.35, description="share of games against a past version")
    fixed: NonNegativeFloat = Field(0.15, description="share of games against a fixed opponent")


class PastConfig(Section):
    """Rule that chooses a past version as opponent."""

    rule: str = "uniform"
    """uniform, latest, pfsp, quality, thompson, or module:function(policy, past) -> weights"""
    weight: PositiveFloat = 1.0
    """relative share of the rule among games against past versions"""
    args: Arguments = {}
    """arguments of the rule; latest: newest (1); pfsp: form (hard or even), exponent (1)"""


def _named(value: Any) -> Any:
    """Return the rules as a list of sections, given a name, a section or a list of either."""
    entries = [value] if isinstance(value, str | dict) else value
    if not isinstance(entries, list):
        return entries
    return [{"rule": each} if isinstance(each, str) else each for each in entries]


class OpponentConfig(Section):
    """Opponent that never changes."""

    is_program: ClassVar[bool] = False
    """True if a program fixes the opponent's skill, so that ratings can be anchored to it."""
    repeats: ClassVar[bool] = True
    """True if the opponent answers identically when a game is replayed from its seed."""

    name: str | None = None
    """name in tables; default: from the kind and its target"""
    weight: PositiveFloat = 1.0
    """relative share among games against fixed opponents"""

    @property
    def key(self) -> str:
        """Name of the opponent in specs, tables and files."""
        return self.name or type(self).model_fields["kind"].default

    @property
    def player(self) -> Self:
        """The opponent without its share of games: equal in two runs if it plays identically."""
        return self.model_copy(update={"weight": 1.0})

    @property
    def adapter_folder(self) -> Path | None:
        """Folder of the LoRA adapter that an engine serves for the opponent; None without one."""
        return None

    @property
    def adapter_name(self) -> str:
        """Name under which an engine serves the opponent's adapter."""
        return f"checkpoint:{self.key}"

    @property
    def answers(self) -> int:
        """Number of answers to each turn, of which the judge's best is played."""
        return 1


class RandomOpponent(OpponentConfig):
    """Opponent that plays random legal moves."""

    is_program = True
    kind: Literal["random"] = "random"
    """random, expert, rules, python, checkpoint, search, mcts or openai"""


class ExpertOpponent(OpponentConfig):
    """Perfect or strong player that comes with a game."""

    is_program = True
    kind: Literal["expert"] = "expert"


class RulesOpponent(OpponentConfig):
    """Passable player by rules of thumb, for a game without an expert."""

    is_program = True
    kind: Literal["rules"] = "rules"


class PythonOpponent(OpponentConfig):
    """A user's own player."""

    is_program = True
    repeats = False  # may use unseeded randomness
    kind: Literal["python"] = "python"
    target: str = Field(description="module:Class, called with an observation, returns the action")

    @property
    def key(self) -> str:
        return self.name or f"python:{self.target.rpartition(':')[2]}"


class CheckpointOpponent(OpponentConfig):
    """Base model with another adapter."""

    kind: Literal["checkpoint"] = "checkpoint"
    path: PathText = Field(description="folder of a LoRA adapter of the same base model")
    temperature: NonNegativeFloat | None = None
    """sampling temperature of the opponent; default: the game's"""
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


class SearchOpponent(OpponentConfig):
    """Search at the table: a policy, improved by one mirror step before each move."""

    kind: Literal["search"] = "search"
    path: PathText = Field(description="folder of a LoRA adapter of the same base model")
    eta: PositiveFloat = 1.0
    """step size: a move's probability is multiplied by exp(eta * its value), in outcomes"""
    continuations: PositiveInt = 64
    """games that the policy plays to the end after each legal move (values: rollouts)"""
    values: Literal["rollouts", "exact", "critic"] = "rollouts"
    """values of moves: rollouts, exact (a small game's tree) or critic (the checkpoint's, vrpo)"""

    @property
    def key(self) -> str:
        return self.name or f"search:{Path(self.path).name}"

    @property
    def adapter_folder(self) -> Path:
        return Path(self.path).expanduser()


class MCTSOpponent(OpponentConfig):
    """Monte Carlo tree search in an OpenSpiel game of perfect information."""

    is_program = True
    kind: Literal["mcts"] = "mcts"
    simulations: PositiveInt = 1000
    """simulated games before each move"""


class OpenAIOpponent(OpponentConfig):
    """A model behind an OpenAI-compatible endpoint."""

    repeats = False
    kind: Literal["openai"] = "openai"
    model: str = Field(description="model name at the endpoint")
    base_url: str = Field("https://api.openai.com/v1", description="an OpenAI-compatible endpoint")
    api_key_env: str = "OPENAI_API_KEY"
    """environment variable that holds the key"""
    temperature: NonNegativeFloat | None = None
    """sampling temperature of the opponent; default: the game's"""
    max_tokens: PositiveInt = 512
    """maximum tokens of an answer, including hidden reasoning"""
    extra: Arguments = {}
    """additional request parameters, such as {reasoning_effort: low}; null removes one"""
    seeded: bool = False
    """send a seed with each turn, for reproducible answers of endpoints such as unstable serve"""
    timeout: PositiveFloat = Field(30.0, description="time limit of a request, in seconds")
    max_retries: NonNegativeInt = 4
    """retries after timeouts, lost connections, 429 and 5xx, within games.turn_timeout"""
    max_calls: PositiveInt | None = None
    """maximum answers in the run; then the opponent stops playing"""
    max_total_tokens: PositiveInt | None = None
    """maximum prompt and answer tokens in the run; then the opponent stops playing"""
    ledger: PathText | None = None
    """file that counts calls and tokens, shareable; default: endpoints/<name>.json of the run"""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_keyless(self.api_key_env, self.base_url)
        check_extra(self.extra)
        return self

    @property
    def key(self) -> str:
        return self.name or f"openai:{self.model}"

    @property
    def is_capped(self) -> bool:
        """True if calls and tokens must be counted."""
        return self.max_calls is not None or self.max_total_tokens is not None


FixedOpponent = (
    RandomOpponent
    | ExpertOpponent
    | RulesOpponent
    | PythonOpponent
    | CheckpointOpponent
    | SearchOpponent
    | MCTSOpponent
    | OpenAIOpponent
)
OPPONENT_KINDS: list[str] = [kind.model_fields["kind"].default for kind in get_args(FixedOpponent)]
BUILT_IN_OPPONENTS: list[FixedOpponent] = [RandomOpponent(), ExpertOpponent(), RulesOpponent()]
"""Opponents that need no entry in a config."""
RESERVED_NAMES = ("base", "self", "past", "fixed", "others", "alone", "person", "me")


class OpponentsConfig(Section):
    """Opponents, and the share of each kind."""

    draw: DrawConfig = DrawConfig()
    past: Annotated[list[PastConfig], BeforeValidator(_named)] = Field([PastConfig()], min_length=1)
    """rule that chooses a past version, or several rules with weights"""
    fixed: list[Annotated[FixedOpponent, Field(discriminator="kind")]] = Field(
        [RandomOpponent()], description=f"opponents that never change: {', '.join(OPPONENT_KINDS)}"
    )
    pool_size: PositiveInt = 32
    """number of newest past versions kept as opponents"""
    pinned: list[Literal["best"] | NonNegativeInt] = []
    """past versions that stay in the pool: numbers, or best (highest mu - 3 sigma)"""

    @property
    def most_past(self) -> int:
        """Most past versions in the pool."""
        return self.pool_size + len(self.pinned)
