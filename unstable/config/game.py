"""A game that is played."""

from itertools import chain
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from unstable.config.base import Arguments, NonNegativeInt, PositiveInt, Section, Share, shown

DRIVER = "driver"
"""Stands for the env of a game that a program outside plays."""


class InvalidMovesConfig(Section):
    """What an invalid move leads to."""

    allowed: NonNegativeInt = 0
    """consecutive invalid moves that a seat may repeat before it forfeits"""
    forfeit_reward: float = -1.0
    """outcome of the seat that forfeits, and of its team"""
    others_reward: float = Field(0.0, description="outcome of the other seats of a forfeited game")


class CurriculumConfig(Section):
    """How often each of several games is played: by weight, or also by what it teaches now."""

    rule: str = "weight"
    """weight, spread (of rewards), progress (of rewards), or module:function of envs -> a weight
    for each"""
    args: Arguments = Field({}, description="arguments for a rule of your own")
    share: Share = 0.8
    """share of the games drawn by the rule, the others by the games' weights"""
    decay: Annotated[float, Field(gt=0, lt=1)] = 0.9
    """of the rewards that a rule goes by, the share that counts a version later"""


class GameConfig(Section):
    """A game that is played, and how it is put to a model."""

    env: str = "TicTacToe-v0"
    """a TextArena id, a game of another library (open_spiel:kuhn_poker), package.module:Class of a
    textarena.Env or of an Environment (games/environment.py), or driver: a program outside plays it
    (driver:module:Class: one that the run starts)"""
    name: str | None = None
    """name in tables and baselines; default: env (must be unique)"""
    args: Arguments = Field({}, description="arguments for the env's constructor")
    seats: PositiveInt = Field(2, description="number of players")
    teams: tuple[tuple[NonNegativeInt, ...], ...] = ()
    """seats that win and lose together, which one player holds, such as [[0, 1], [2, 3]]; default:
    as the game declares it, else each seat is for itself"""
    seating: str | None = None
    """module:function(env) -> for each seat the number that the env has given it, where a reset
    deals roles, so that a seat is a role; default: as the game declares it"""
    weight: PositiveFloat = 1.0
    """share of the games played, relative to the other entries"""
    events: Literal["auto", "all", "none"] = "auto"
    """what happened until now, in prompts: all, none (where there is a board), or auto: none in
    games whose board is known to show everything"""
    prompt: str = "compact"
    """prompt style: compact (few tokens; answer where a game has no such form), answer, think, or
    module:function"""
    parser: str = "auto"
    """text to action: brackets (last [...]), exact (nothing but [...]), bare (nothing but what
    stands in the brackets), plain (either), boxed, raw, module:function, or auto: the style's
    (answer: plain, compact: bare, think: brackets; boxed where the env takes actions without
    them)"""
    action_form: Literal["auto", "brackets", "bare"] = "auto"
    """how the env takes an action: brackets ([3]), bare (3), or auto: as it is found where the game
    is tried"""
    max_turns: PositiveInt = 50
    """a game is cut off, and counted as truncated, after this many turns"""
    invalid_moves: InvalidMovesConfig = InvalidMovesConfig()
    turn_timeout: PositiveFloat = 60.0
    """seconds that a turn may take, without the time of local models; then the game has failed"""
    timeout: PositiveFloat = 600.0
    """the same for a whole game, looked at after each turn"""
    isolated: bool = False
    """play each game, with its bots, in a process of its own; a game that has blocked its actor is
    played so from then on"""
    legal_moves: str | None = None
    """module:function(env) -> actions, for games that do not list their legal moves"""
    info: str | None = None
    """module:INFO, a GameInfo (unstable.games): what is known of a game of your own, such as a
    short form, questions, an expert, that its tree is small; default: as the catalogue of games
    says"""
    payoffs: str | None = None
    """module:function(env) -> what a finished game is worth to each seat; default: as unstable
    games says (chips in our KuhnPoker and Leduc), elsewhere the env's rewards"""
    payoff_scale: PositiveFloat | None = None
    """an outcome is pay-off / payoff_scale, for the whole run; default: the most that can be won
    where the game declares it, else 1"""

    @model_validator(mode="after")
    def _teams_share_the_seats(self) -> Self:
        held = list(chain(*self.teams))
        is_each_once = len(held) == self.seats and sorted(held) == list(range(self.seats))
        if self.teams and (not is_each_once or () in self.teams):
            raise ValueError(
                f"teams = {shown([list(team) for team in self.teams])}: each seat from 0 to "
                f"{self.seats - 1} must be in one team, once; set teams, or seats to their number"
            )
        return self

    @property
    def sides(self) -> tuple[tuple[int, ...], ...]:
        """Sides that play against each other: the teams, or each seat for itself."""
        return self.teams or tuple((seat,) for seat in range(self.seats))

    @property
    def is_driven(self) -> bool:
        """Return whether a program outside plays it."""
        return self.env.partition(":")[0] == DRIVER

    @property
    def driver(self) -> str | None:
        """Program that the run starts to play it, module:Class."""
        return self.env.partition(":")[2] or None if self.is_driven else None

    @property
    def key(self) -> str:
        """The game's name in specs, files, metrics and baselines."""
        return self.name or self.env
