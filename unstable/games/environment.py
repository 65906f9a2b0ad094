"""What `Game` asks of an env, whichever library it comes from."""

import copy
from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple, NoReturn, Self

from unstable.games.info import GameInfo
from unstable.types import Observation


class EnvStep(NamedTuple):
    """The result of an action."""

    over: bool
    refused: bool  # the action was invalid, and the position is as it was
    reason: str = ""  # why it was refused, or why the game is over


class Environment(ABC):
    """One play of a game in which one seat moves at a time, by text.

    `games/textarena.py` implements it for TextArena's envs. A config names any other class of it by
    `games.env: package.module:Class`; it is made by `Class(**games.args)`, once for each play.

    Order: `reset` once, then `observe` and `step` by turns until a step is over, then `payoffs`.
    Seats are meant by the env's own numbers, 0, 1 and so on; `seating` says which role each has.

    Chance comes from `random` and `numpy.random`, which within `__init__`, `reset`, `observe` and
    `step` are the game's own, or from generators that `reset` seeds. Moves of nature are made
    within `reset` and `step`. A game is solved exactly (`solving/tree.py`) only if all its draws
    are whole numbers, choices and shuffles of `random`; any other is refused there.

    Whatever a method raises fails the game, but for `step`: there it is the mover's forfeit where
    the action was none of `legal_moves`.
    """

    info: GameInfo = GameInfo()
    """What is known of the game besides: an expert, compact form, size. Of a class, not a play.

    A config's `games.N.info` takes its place.
    """
    lists_moves: bool = True
    """Whether `legal_moves` answers: False where an action may be any text. Of a class."""
    action_form: Literal["brackets", "bare"] | None = None
    """How `step` takes an action, [3] or 3; None: as it is found by playing. Of a class."""

    @property
    def raw(self) -> Any:
        """What functions of `info` and of the config (`games.legal_moves`, ...) are asked with.

        The other library's own env where this wraps one. It is there before `reset`.
        """
        return self

    @abstractmethod
    def reset(self, seats: int, seed: int) -> None:
        """Begin for so many seats. Raises `AssertionError` for a number that the game has not."""

    @property
    @abstractmethod
    def mover(self) -> int:
        """The number of the seat to move; any once the game is over."""

    @abstractmethod
    def observe(self) -> Observation:
        """What the mover is shown: rules, events in order, the last board, a refusal's notice.

        `seat` is the mover's number; `brief` and `position` stay empty. A `chat` takes the place of
        all texts in a model's prompt, as it is. Asking twice gives the same. Nothing in it may be
        hidden from that seat by the game's rules.
        """

    @abstractmethod
    def legal_moves(self) -> list[str]:
        """The actions that `step` accepts from the mover, one at least, without repeats.

        Raises `ValueError` where they cannot be listed. Changes nothing and draws nothing.
        """

    @abstractmethod
    def step(self, action: str) -> EnvStep:
        """Make the mover's move. A refused one leaves the position and the mover as they were.

        How many refusals a seat has is for `Game` to count: they never end the game here.
        """

    @abstractmethod
    def payoffs(self) -> list[float]:
        """What the game that is over pays each number, over all steps, in the game's own unit."""

    def scale(self) -> float | None:
        """The most that a seat can win or lose: a constant of the variant, so that outcome =
        pay-off / scale is within -1 and 1. None: not known, and a pay-off is its own outcome."""
        return None

    def teams(self, seats: int) -> tuple[tuple[int, ...], ...]:
        """Which of so many seats win and lose together, also before `reset`; (): none do."""
        return ()

    def seating(self, seats: int) -> list[int]:
        """For each seat the number that has its role in this play, after `reset`."""
        return list(range(seats))

    def missing(self) -> set[int]:
        """Numbers that `reset` was asked for and that can never come to move."""
        return set()

    @property
    def board(self) -> str:
        """The last board that the mover was shown, also once the game is over; or empty."""
        return self.observe().board

    def take_cut(self) -> int:
        """Characters of over-long messages that were left out since this was last asked."""
        return 0

    def copied(self) -> Self:
        """Another play at the same position that goes its own way; only trees need it."""
        return copy.deepcopy(self, {id(self.info): self.info})


class DrivenEnvironment(Environment):
    """Stands for a game that a program outside plays: nothing is known of it, and none played."""

    info = GameInfo(name="driver")
    lists_moves = False

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ValueError("the game is a program's outside, and cannot be played without it")

    mover = property(_refuse)
    reset = observe = legal_moves = step = payoffs = _refuse
