"""Metadata of a game, declared as one value in the game's own file."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

Probabilities = dict[str, float]
"""Probability of each action."""
Events = Sequence[str]
"""Events that the seat to move saw, in order, without rules and board: ["You: [3]", ...]."""
RuleBot = Callable[[Any, Events], Probabilities]
"""Function from an env and events to a rule of thumb's action probabilities, for the mover."""


@dataclass(frozen=True, slots=True)
class Expert:
    """A perfect or strong player, which uses only the information of the seat to move."""

    moves: Callable[[Any], Probabilities]
    """Action probabilities in an env: uniform over the optimal moves, or an equilibrium's."""
    reason: Callable[[Any, str], str]
    """A true sentence about the effect of a legal action."""


def always(env: Any) -> bool:
    """Return True, for a property that every variant of the game has."""
    return True


def never(env: Any) -> bool:
    """Return False, for a property that no variant of the game has."""
    return False


def with_turns_left(position: Callable[[Any], str]) -> Callable[[Any], str]:
    """Return a function that appends the turns left in a TextArena env, which ends by their count.

    "A 3 2, B, C 1 11": eleven turns are left.
    """
    return lambda env: f"{position(env)} {env.state.max_turns - env.state.turn}"


@dataclass(frozen=True, slots=True)
class Compact:
    """A game in few tokens, for the prompt style `compact`: a constant brief and the position.

    Compact(brief="Nim. The last object wins ...", position=lambda env: "3 4 5")
    """

    brief: str
    """Rules, the format of a position, and the requested answer: the action without brackets."""
    position: Callable[[Any], str]
    """Information of the seat to move in an env, from its own perspective."""
    fits: Callable[[Any], bool] = always
    """Predicate: true if a variant of the game, an env before its reset, has this form."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about a game's rules, which does not occur in play; it trains small models.

    Question(brief="Who has three in a row?", draw=lambda rng: ("XXX345O8O", ["X"]))
    """

    brief: str
    """Task and format of the question."""
    draw: Callable[[Random], tuple[str, list[str]]]
    """Random question and its correct answers."""


@dataclass(frozen=True, slots=True)
class Payoffs:
    """Payoffs of a finished game to each seat, in the game's unit, such as chips.

    Payoffs(of=lambda env: [2.0, -2.0], scale=lambda env: 2.0 * env.max_rounds)
    """

    of: Callable[[Any], list[float]]
    """Payoffs by seat of a finished env."""
    scale: Callable[[Any], float]
    """Maximum payoff or loss, a constant of the variant; outcome = payoff / scale."""
    zero_sum: bool = True
    """True if the payoffs of all seats add up to 0."""


@dataclass(frozen=True, slots=True)
class Teams:
    """Seats that win and lose together, constant over all games of a variant.

    If a reset deals roles, `seating` finds the seats: a seat is then a role, such as the detective,
    and not a number of the env.
    Teams(of=lambda env, seats: ((0, 1), (2, 3)))
    """

    of: Callable[[Any, int], tuple[tuple[int, ...], ...]]
    """Teams of an env before its reset, by number of seats."""
    seating: Callable[[Any], list[int]] | None = None
    """The env's number of each seat, after a reset; None: numbers are seats."""


@dataclass(frozen=True, slots=True)
class SmallTree:
    """A game whose whole tree can be grown: it is small, and draws only integers."""

    is_open: bool
    """True for perfect information: positions with equal observations are one position."""
    fits: Callable[[Any], bool] = always
    """Predicate: true if a variant, an env before its reset, is small enough."""
    variants: str = ""
    """Variants that fit, for messages, such as args.max_rounds = 1; empty: all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GameInfo:
    """Metadata and functions of a game; missing ones are None.

    A config names a custom one by `games.N.info`.
    GameInfo(name="Sticks", legal_moves=legal_moves, expert=Expert(moves, reason), ...)
    """

    env: str = ""  # class name of a catalog env; also matches subclasses
    name: str = ""  # shown in messages
    legal_moves: Callable[[Any], list[str]] | None = None  # of the seat to move
    prints_moves: bool = False  # the board lists the legal moves
    board_shows_all: Callable[[Any], bool] = never  # then prompts omit past events
    perfect_information: Callable[[Any], bool] = never
    """Predicate of an env before its reset: no seat hides anything, and seats move in turn."""
    small_tree: SmallTree | None = None
    teams: Teams | None = None  # None: each seat plays for itself
    payoffs: Payoffs | None = None  # None: the env's rewards
    expert: Expert | None = None
    rules: RuleBot | None = None  # used without an expert or an installed rule bot
    action_values: Callable[[Any], dict[str, float]] | None = None
    """Outcome of each legal action for the seat to move, under perfect play after it."""
    compact: Compact | None = None
    state: Callable[[Any], str] | None = None
    """Whole state of an env, which replaces `Environment.whole_state`: "JK 1/3 +0 check"."""
    questions: tuple[Question, ...] = ()
