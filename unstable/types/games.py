"""Games: their specification, a seat's view of them, and their result."""

import math
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import mean
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

from unstable.types.answers import Answer, Plain
from unstable.types.figures import Count, Figure, SeatNumber
from unstable.types.players import PlayerId

Purpose = Literal["train", "eval"]
Side = tuple[SeatNumber, ...]
"""Seats that win and lose together: a team, or a single seat that plays for itself."""


class SeatSpec(Plain, frozen=True):
    """Player of a seat. SeatSpec(player=PlayerId.policy(3), temperature=1.0, group_id=17)"""

    player: PlayerId
    temperature: Figure
    group_id: Count | None = None  # None: this seat is not trained on
    group_size: Count = 1  # trajectories in the group
    votes: Count = 1  # answers sampled per turn, of which the most frequent action is played
    best_of: Count = 1  # answers sampled per turn, of which a judge's best is played

    @property
    def trained(self) -> bool:
        """True if the seat's turns are trained on."""
        return self.group_id is not None


KnownPlayer = PlayerId | str
"""A local model that samples single free answers at temperature 1, or a built-in program's kind."""


class Reward(Plain, frozen=True):
    """A reward term's value before and after its weight."""

    raw: Figure
    weighted: Figure


class GameSpec(Plain, frozen=True, forbid_unknown_fields=False):
    """A fully determined game to play: two plays of it differ only by an engine's rounding.

    GameSpec(game_id=5, purpose="train", env="TicTacToe-v0", seed=90210, seats=(SeatSpec(...), ...))
    """

    # Unique in training; an evaluation's game k is equal for all versions.
    game_id: Count = field(name="game")
    purpose: Purpose
    env: str  # a GameConfig's key
    seed: int  # of the env's randomness, equal within a group
    seats: Annotated[tuple[SeatSpec, ...], Meta(min_length=1)]
    teams: tuple[Side, ...] = ()  # seats that win and lose together; (): each plays for itself
    member: Count = 0  # index among the group's games, in order of their start
    branches: Count = 0  # number of branches, which take the next game ids
    opening: Count = 0  # number of first moves that `opener` makes at all seats; never trained on
    opener: SeatSpec | None = None
    ensemble: tuple[PlayerId, ...] = ()  # versions that choose the first actions of branches

    def problem(self) -> str | None:
        """Return a description of the first inconsistent field; None if there is none."""
        if self.teams and sorted(chain(*self.teams)) != list(range(len(self.seats))):
            return "teams: each seat must be in exactly one"
        return "opener: missing" if self.opening and not self.opener else None

    @property
    def sides(self) -> tuple[Side, ...]:
        """Sides that play against each other: the teams, or each seat; one player has a side."""
        return self.teams or tuple(zip(range(len(self.seats))))

    @property
    def trained_sides(self) -> list[Side]:
        """Sides with a seat that is trained on."""
        return [side for side in self.sides if any(self.seats[seat].trained for seat in side)]


class Observation(Struct, frozen=True, kw_only=True):
    """View of the seat to move; the rules come first and never change, so that games share them.

    Observation(seat=1, rules="You are X ...", events=["Player 0 ..."], board="...", notice="")
    """

    seat: int
    rules: str
    events: list[str]  # oldest first; the oldest are omitted from long prompts
    board: str  # the newest board
    notice: str  # why the seat's last move was invalid; empty: it was not
    brief: str = ""  # short rules and request, equal in every turn; for the compact style
    position: str = ""  # parts that change between turns; for the compact style
    answers: tuple[str, ...] = ()  # the seat's earlier answers with thoughts, private
    chat: tuple[dict[str, Any], ...] = ()  # a game driver's request, instead of the fields above
    tools: tuple[dict[str, Any], ...] = ()  # tools offered in that request


class Turn(Struct, kw_only=True, omit_defaults=True):
    """One observation and one action of a seat; the answer names its player."""

    seat: SeatNumber
    index: Count  # 0-based index among the game's turns
    answer: Answer
    invalid: bool  # the env rejected the action
    seconds: Figure  # duration of the player's answer
    rewards: dict[str, Reward] | None = None  # including trajectory terms; None: not trained on

    @property
    def player(self) -> PlayerId:
        """Player that answered."""
        assert self.answer.player is not None, "set when the turn is made"
        return self.answer.player


Standing = Literal["win", "draw", "loss"]
WORTH: dict[Standing, float] = {"win": 1.0, "draw": 0.5, "loss": 0.0}
"""Contribution of a game to the score, which is wins plus half the draws, per game."""


def standing(own: float, all_scores: Sequence[float]) -> Standing:
    """Return the standing of one of several scores: the best wins if another is worse."""
    if own < max(all_scores):
        return "loss"
    return "win" if min(all_scores) < own else "draw"


def standing_of(spec: GameSpec, ranked_outcomes: Sequence[float], seat: int) -> Standing:
    """Return the standing of a seat's team: the best outcome wins if another is worse.

    A forfeit is a loss regardless of its outcome. With a single side, an outcome of at least 1 is a
    win, another outcome above 0 a draw.
    """
    own = ranked_outcomes[seat]
    if own == -math.inf:
        return "loss"
    if len(spec.sides) == 1:
        return "win" if own >= 1 else "draw" if own > 0 else "loss"
    return standing(own, ranked_outcomes)


def ranked(spec: GameSpec, outcomes: Sequence[float], forfeit: int | None) -> list[float]:
    """Return outcomes by seat for comparisons only: each seat of a team gets the team's mean.

    A side that forfeited gets minus infinity.
    """
    found = list(outcomes)
    for team in spec.teams:
        worth = mean(outcomes[seat] for seat in team)  # exact, so that equal teams tie
        for seat in team:
            found[seat] = worth
    if forfeit is not None:
        for seat in next(side for side in spec.sides if forfeit in side):
            found[seat] = -math.inf
    return found


class GameResult(Struct, kw_only=True, omit_defaults=True):
    """A finished game.

    `payoffs` are by seat, in the game's unit; `outcomes` are payoffs divided by the game's scale,
    unshaped. A forfeit has a configured outcome and no payoff.
    """

    spec: GameSpec
    payoffs: list[Figure]
    outcomes: list[Figure]
    forfeit: SeatNumber | None = None  # the seat that forfeited by invalid moves
    raised: bool = False  # the env raised an exception at the forfeiting action
    truncated: bool  # cut off by the step limit
    reason: str  # the env's reason for the end of the game
    seconds: Figure
    stakes: Figure | None = None
    """Maximum that a seat can win or lose, in the game's unit; None for a game without payoffs."""
    fork: Count = 0  # in a branch: index of its first own turn
    turns: list[Turn]
    branches: list["GameResult"] = []

    def problem(self) -> str | None:
        """Return a description of the first inconsistent field; None if there is none."""
        seats = len(self.spec.seats)
        if problem := self.spec.problem():
            return f"spec.{problem}"
        for name, values in (("payoffs", self.payoffs), ("outcomes", self.outcomes)):
            if len(values) != seats:
                return f"{name}: {len(values)} values for {seats} seats"
        if self.forfeit is not None and self.forfeit >= seats:
            return f"forfeit: no seat {self.forfeit}"
        for place, turn in enumerate(self.turns):
            if turn.index != place:
                return f"turns.{place}.index: {turn.index}"
            if turn.seat >= seats:
                return f"turns.{place}.seat: no seat {turn.seat}"
            if turn.answer.player is None:
                return f"turns.{place}.answer.player: missing"
            if (sampled := turn.answer.sampled) and (problem := sampled.problem()):
                return f"turns.{place}.answer.sampled.{problem}"
        is_late = self.turns and self.fork > len(self.turns)  # no turns: only the head was read
        return "fork: after the last turn" if is_late else None

    @property
    def games(self) -> list["GameResult"]:
        """The game and its branches."""
        return [self, *self.branches]

    @property
    def own_turns(self) -> list[Turn]:
        """Turns that were played in this game and not in the game that it was forked from."""
        return self.turns[self.fork :]

    @property
    def trained(self) -> list["GameResult"]:
        """Games that are trained on: the game itself or, if it was forked, its branches.

        A forked game is excluded: it reaches the fork by definition, and its continuation was not
        sampled together with the branches.
        """
        return self.branches if self.spec.branches else [self]

    @property
    def trained_turns(self) -> list[Turn]:
        """Own turns of trained seats, in order, without the opening."""
        seats, own = self.spec.seats, self.own_turns
        return [t for t in own if t.index >= self.spec.opening and seats[t.seat].trained]

    @property
    def ended_in_opening(self) -> bool:
        """True if the game ended before any seat's own player had a turn."""
        return self.spec.opening > 0 and len(self.turns) <= self.spec.opening

    def seat_turns(self, seat: int) -> list[Turn]:
        """Return the turns of a seat's own player, in order, without the opening."""
        return [t for t in self.turns if t.seat == seat and t.index >= self.spec.opening]

    def standing(self, seat: int) -> Standing:
        """Return the standing of a seat's team, by `standing_of`."""
        return standing_of(self.spec, self.ranked_outcomes, seat)

    @property
    def ranked_outcomes(self) -> list[float]:
        """Outcomes by seat, adjusted for comparisons by `ranked`."""
        return ranked(self.spec, self.outcomes, self.forfeit)

    @property
    def num_trained(self) -> int:
        """Number of turns that can be trained on, in all branches."""
        return sum(len(game.trained_turns) for game in self.trained)


class RecordedGame(GameResult, kw_only=True):
    """A game as read from a file."""

    version: Count  # current version at the end of the game
    actor: Count | None  # index of the actor that played it; None: an evaluation on all actors


class SpentError(Exception):
    """Exhausted budget of an opponent, which plays no more. SpentError("openai:some", "why")"""

    def __init__(self, opponent: str, why: str) -> None:
        super().__init__(opponent, why)
        self.opponent = opponent

    def __str__(self) -> str:
        return self.args[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class GameFailure:
    """A game that raised, or whose reward terms did: counted, logged, never trained on."""

    spec: GameSpec
    error: str  # one line
    traceback: str
    spent: str | None = None  # opponent with an exhausted budget, if that is the cause

    @classmethod
    def of(cls, spec: GameSpec, error: BaseException) -> "GameFailure":
        """Return the failure of a game that raised `error`."""
        line = " ".join(f"{type(error).__name__}: {error}".split())
        trace = "".join(traceback.format_exception(error))
        spent = error.opponent if isinstance(error, SpentError) else None
        return cls(spec=spec, error=line, traceback=trace, spent=spent)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActorState:
    """Knowledge of an actor from its past games, on which its future games depend."""

    training_games: int
    trained_turns: int
    ended: dict[str, int]  # number of regularly finished games, by env
    raised: dict[str, int]  # number of games with exceptions or failures, by env
    # By env, seat and turn: share of games that reached it, spread of outcomes.
    forks: list[tuple[str, int, int, float, float]]
