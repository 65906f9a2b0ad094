"""Interface between `Game` and the envs of any library."""

import copy
from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple, NoReturn, Self

from unstable.games.info import GameInfo
from unstable.types import Observation


class EnvStep(NamedTuple):
    """The result of an action."""

    over: bool
    refused: bool  # the action was invalid, and the position did not change
    reason: str = ""  # of the refusal or of the end of the game


class ServiceDownError(RuntimeError):
    """Raised by `step` if a service that the game needs, such as a judge, does not answer.

    The game fails, and no seat forfeits it.
    """


class Environment(ABC):
    """One play of a game in which one seat moves at a time, by text.

    `games/textarena.py` implements it for TextArena's envs. A config names any other subclass by
    `games.env: package.module:Class`; each play constructs one by `Class(**games.args)`.

    Order: `reset` once, then alternating `observe` and `step` until a step is over, then
    `payoffs`. Methods identify seats by the env's own numbers, from 0; `seating` maps roles.

    Chance comes from `random` and `numpy.random`, which are private to the game within `__init__`,
    `reset`, `observe` and `step`, or from generators that `reset` seeds. `reset` and `step` make
    the moves of chance. A game can be solved exactly (`solving/tree.py`) only if all its draws are
    integers, choices and shuffles of `random`; growing its tree raises an error for any other.

    An error in a method fails the game. The exception is `step`: its errors, other than
    `ServiceDownError`, are the mover's forfeit if the action was none of `legal_moves`.
    """

    info: GameInfo = GameInfo()
    """Metadata of the game, such as an expert, compact form, size. A class attribute.

    A config's `games.N.info` overrides it.
    """
    lists_moves: bool = True
    """True if `legal_moves` is implemented; False if an action may be any text. Class attribute."""
    action_form: Literal["brackets", "bare"] | None = None
    """Form of actions for `step`, [3] or 3; None: detected by playing. Class attribute."""
    writes_prompt: bool = False
    """True if the board is a whole prompt, and `step` reads whole answers. Class attribute."""

    @property
    def raw(self) -> Any:
        """Object that functions of `info` and of the config (`games.legal_moves`, ...) take.

        By default this env; the other library's env if this wraps one. It exists before `reset`.
        """
        return self

    @abstractmethod
    def reset(self, seats: int, seed: int) -> None:
        """Start a game of `seats` seats; raises `AssertionError` for an unsupported number."""

    @property
    @abstractmethod
    def mover(self) -> int:
        """Number of the seat to move; arbitrary after the game is over."""

    @abstractmethod
    def observe(self) -> Observation:
        """Return the mover's observation: rules, events in order, the last board, any notice.

        `seat` is the mover's number; `brief` and `position` stay empty. A `chat` replaces all texts
        in a model's prompt, unchanged. A second call returns an equal observation. It must not
        contain anything that the rules hide from the seat.
        """

    @abstractmethod
    def legal_moves(self) -> list[str]:
        """Return the actions that `step` accepts from the mover, at least one, without repeats.

        Raises `ValueError` if they cannot be listed. Must not change the position or draw chance.
        """

    @abstractmethod
    def step(self, action: str) -> EnvStep:
        """Make the mover's move. A refused move must not change the position or the mover.

        `Game` counts refusals: an env must not end the game over them.
        """

    @abstractmethod
    def payoffs(self) -> list[float]:
        """Return each number's total payoff of a finished game, in the game's unit."""

    def whole_state(self) -> str | None:
        """Return all that decides what follows, hidden information and pending moves included.

        A short text for the state critic (`critic.sees: state`), which no player reads: equal texts
        with an equal seat to move are positions with equal futures. By default the compact form of
        a small game of perfect information; None if the env cannot tell. Changes nothing.
        """
        tree, compact = self.info.small_tree, self.info.compact
        if tree is None or not tree.is_open or compact is None:
            return None
        return compact.position(self.raw)

    def scale(self) -> float | None:
        """Return the maximum payoff or loss of a seat, a constant of the variant, such that outcome
        = payoff / scale is within -1 and 1. None if unknown: the outcome is then the payoff."""
        return None

    def teams(self, seats: int) -> tuple[tuple[int, ...], ...]:
        """Return the teams of `seats` seats, also before `reset`; empty if there are none."""
        return ()

    def seating(self, seats: int) -> list[int]:
        """Return the number that has each seat's role in this play, after `reset`."""
        return list(range(seats))

    def missing(self) -> set[int]:
        """Return the numbers of seats that the env does not create, and so never move."""
        return set()

    @property
    def board(self) -> str:
        """Last board that the mover saw, also after the game is over; or empty."""
        return self.observe().board

    def take_cut(self) -> int:
        """Return the number of characters cut from overlong messages since the last call."""
        return 0

    def copied(self) -> Self:
        """Return an independent play at the current position; only trees need it."""
        return copy.deepcopy(self, {id(self.info): self.info})


class DrivenEnvironment(Environment):
    """Placeholder for a game that a game driver plays: it has no metadata, and raises on play."""

    info = GameInfo(name="driver")
    lists_moves = False

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise ValueError("the game has no environment: only its game driver can play it")

    mover = property(_refuse)
    reset = observe = legal_moves = step = payoffs = _refuse
