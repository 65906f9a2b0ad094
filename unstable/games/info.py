"""What is known of a game besides its env: declared in the game's own file, as one value."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

Probabilities = dict[str, float]
"""Probability of each action."""
Events = Sequence[str]
"""What the seat to move was shown besides rules and board, in order: ["You: [3]", ...]."""
RuleBot = Callable[[Any, Events], Probabilities]
"""Return the probabilities of actions that a rule of thumb gives the seat to move."""


@dataclass(frozen=True, slots=True)
class Expert:
    """How a perfect or a strong player moves, by what the seat to move may know alone."""

    moves: Callable[[Any], Probabilities]
    """What it would play in an env: the optimal moves evenly, or an equilibrium's probabilities."""
    reason: Callable[[Any, str], str]
    """One true sentence on what a legal action does."""


def always(env: Any) -> bool:
    """For what holds in every variant of the game."""
    return True


def never(env: Any) -> bool:
    """For what holds in none."""
    return False


@dataclass(frozen=True, slots=True)
class Compact:
    """A game in few tokens, for the prompt style `compact`: what never changes, and what does.

    Compact(brief="Nim. Whoever takes the last object wins ...", position=lambda env: "3 4 5")
    """

    brief: str
    """Rules, how to read a position, and what to answer: the action without its brackets."""
    position: Callable[[Any], str]
    """What the seat to move may know, as it sees it, in an env."""
    fits: Callable[[Any], bool] = always
    """Whether a variant of the game, an env before its reset, can be put like that."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question about the rules of a game, which play never asks: how a small model gets to see.

    Question(brief="Who has three in a row?", draw=lambda rng: ("XXX345O8O", ["X"]))
    """

    brief: str
    """What is asked, and how a question reads."""
    draw: Callable[[Random], tuple[str, list[str]]]
    """A question, and its right answers."""


@dataclass(frozen=True, slots=True)
class Payoffs:
    """What a finished game pays each seat, in a unit of its own, such as chips.

    Payoffs(of=lambda env: [2.0, -2.0], scale=lambda env: 2.0 * env.max_rounds)
    """

    of: Callable[[Any], list[float]]
    """Pay-offs by seat, in an env that is over."""
    scale: Callable[[Any], float]
    """The most that can be won or lost, a constant of the variant; outcome = pay-off / scale."""
    zero_sum: bool = True
    """Whether the seats' pay-offs of a game add up to 0."""


@dataclass(frozen=True, slots=True)
class Teams:
    """Which seats win and lose together, the same in every game of a variant.

    Where a reset deals the roles, `seating` finds the seats: a seat is then a role, such as the
    detective's, and not the number that the env happens to give it.
    Teams(of=lambda env, seats: ((0, 1), (2, 3)))
    """

    of: Callable[[Any, int], tuple[tuple[int, ...], ...]]
    """The teams of an env, before its reset, with so many seats."""
    seating: Callable[[Any], list[int]] | None = None
    """For each seat the env's number of it, after a reset; None: they are the same."""


@dataclass(frozen=True, slots=True)
class SmallTree:
    """A game whose whole tree can be grown: it is small, and draws whole numbers alone."""

    is_open: bool
    """Every seat sees the whole position, so that positions that are shown alike are one."""
    fits: Callable[[Any], bool] = always
    """Whether a variant is small enough, an env before its reset."""
    variants: str = ""
    """Variants that fit, for messages, such as args.max_rounds = 1; empty: all do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GameInfo:
    """The services of a game; those that it lacks are None.

    A config names one of your own by `games.N.info`.
    GameInfo(name="Sticks", legal_moves=legal_moves, expert=Expert(moves, reason), ...)
    """

    env: str = ""  # in the catalogue: name of the env's class; those that extend it are meant too
    name: str = ""  # as messages call it
    legal_moves: Callable[[Any], list[str]] | None = None  # of the seat to move
    prints_moves: bool = False  # the board lists the legal moves
    board_shows_all: Callable[[Any], bool] = never  # so that past events can be left out
    small_tree: SmallTree | None = None
    teams: Teams | None = None  # where each seat is not for itself
    payoffs: Payoffs | None = None  # where they are not the env's rewards
    expert: Expert | None = None
    rules: RuleBot | None = None  # where there is no expert, and none is installed
    action_values: Callable[[Any], dict[str, float]] | None = None
    """Outcome of each legal action for the seat to move, if all play perfectly after it."""
    compact: Compact | None = None
    questions: tuple[Question, ...] = ()
