"""Config of a game: environment, prompts, actions, limits and payoffs."""

from itertools import chain
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from unstable.config.base import Arguments, NonNegativeInt, PositiveInt, Section, Share, shown

DRIVER = "driver"
"""Value of `env`, or its prefix, for a game that an external program plays."""


class InvalidMovesConfig(Section):
    """Consequences of an invalid move."""

    allowed: NonNegativeInt = 0
    """consecutive invalid moves that a seat may make before it forfeits"""
    forfeit_reward: float | None = None
    """outcome of a seat that forfeits, and of its team; null: the worst declared one, or -1"""
    others_reward: float = Field(0.0, description="outcome of the other seats of a forfeited game")

    def outcome(self, worst: float = -1.0) -> float:
        """Return the outcome of a seat that forfeits a game that declares `worst` as its worst."""
        return min(worst, -1.0) if self.forfeit_reward is None else self.forfeit_reward


class CurriculumConfig(Section):
    """Shares of several games: fixed by weight, or adapted to their rewards."""

    rule: str = "weight"
    """share by weight, spread or progress (of rewards), or module:function(envs) -> weights"""
    args: Arguments = Field({}, description="arguments of a custom rule")
    share: Share = 0.8
    """share of games drawn by the rule; the others are drawn by weight"""
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """decay per version of the rewards that the rule reads"""


class GameConfig(Section):
    """A game: its environment, prompts, limits and payoffs."""

    env: str = "TicTacToe-v0"
    """TextArena id, LIBRARY:GAME (open_spiel:kuhn_poker), module:Class, or driver[:module:Class]"""
    name: str | None = None
    """unique name in tables and baselines; default: env"""
    args: Arguments = Field({}, description="arguments of the env's constructor")
    seats: PositiveInt = Field(2, description="number of players")
    teams: tuple[tuple[NonNegativeInt, ...], ...] = ()
    """teams of seats, such as [[0, 1], [2, 3]]; default: the game's, else none"""
    seating: str | None = None
    """module:function(env) -> player number of each seat, if resets deal roles; default: game's"""
    weight: PositiveFloat = 1.0
    """relative share of training games among the entries"""
    events: Literal["auto", "all", "none"] = "auto"
    """past events in prompts: all, none (needs a board), auto (none if the board shows all)"""
    prompt: str = "compact"
    """prompt style: compact (few tokens; answer if unsupported), answer, think, module:function"""
    parser: str = "auto"
    """parser: auto (by prompt), brackets, exact, bare, plain, boxed, raw or module:function"""
    action_form: Literal["auto", "brackets", "bare"] = "auto"
    """form of the env's actions: brackets ([3]), bare (3), or auto (tried out)"""
    max_turns: PositiveInt = 50
    """turns after which a game is truncated"""
    invalid_moves: InvalidMovesConfig = InvalidMovesConfig()
    turn_timeout: PositiveFloat = 60.0
    """time limit of a turn in seconds, excluding local models; then the game fails"""
    timeout: PositiveFloat = 600.0
    """time limit of a game in seconds, checked after each turn; then the game fails"""
    isolated: bool = False
    """child process for each game and its bots; automatic after a game has blocked its actor"""
    legal_moves: str | None = None
    """module:function(env) -> legal actions, for games that do not list them"""
    info: str | None = None
    """module:INFO, a GameInfo (unstable.games) of a custom game; default: from the catalog"""
    payoffs: str | None = None
    """module:function(env) -> payoff of each seat; default: the catalog's, else the rewards"""
    payoff_scale: PositiveFloat | None = None
    """divisor from payoffs to outcomes; default: the declared maximum payoff, else 1"""

    @model_validator(mode="after")
    def _teams_share_the_seats(self) -> Self:
        held = list(chain(*self.teams))
        is_each_once = len(held) == self.seats and sorted(held) == list(range(self.seats))
        if self.teams and (not is_each_once or () in self.teams):
            raise ValueError(
                f"teams = {shown([list(team) for team in self.teams])}: each seat from 0 to "
                f"{self.seats - 1} must be in exactly one team; correct teams, or seats"
            )
        return self

    @property
    def sides(self) -> tuple[tuple[int, ...], ...]:
        """Sides that play against each other: the teams, or each seat for itself."""
        return self.teams or tuple((seat,) for seat in range(self.seats))

    @property
    def is_driven(self) -> bool:
        """True if an external program plays the game."""
        return self.env.partition(":")[0] == DRIVER

    @property
    def driver(self) -> str | None:
        """Driver that the run starts to play the game, module:Class; None without one."""
        return self.env.partition(":")[2] or None if self.is_driven else None

    @property
    def key(self) -> str:
        """Name of the game in specs, files, metrics and baselines."""
        return self.name or self.env
