"""Text interface for games whose actions are numbers, such as PettingZoo's and Gymnasium's."""

import copy
import io
import pickle
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

from gymnasium.spaces import Discrete
from gymnasium.utils import EzPickle

from unstable.config import ConfigError
from unstable.config.plugins import load_target
from unstable.contrib.environments.readable import is_readable, marked, readable
from unstable.games.bridges.named import NamedEnvironment, in_line, position, told_apart
from unstable.games.info import Compact, GameInfo, Payoffs, SmallTree, always

Maker = Callable[..., Any]
"""Function that constructs a library's env from its arguments."""
E = TypeVar("E", bound="NumberedEnvironment")


class NumberedEnvironment(NamedEnvironment):
    """One play of a library's game. Subclasses implement its start, moves and payoffs.

    `text` names a function(env, seat, observation) that returns what a seat sees, `actions` a
    function(env, seat, number) that names an action, both from the library's env; `rules` is a
    text. The library's env receives all other arguments.
    """

    make: Maker
    title: str
    """Name of the game and of the library."""
    is_open: bool
    """True if seats see the env's text rendering, since it hides nothing from any seat."""
    meanings: Sequence[str] = ()
    """Meanings of actions by number, if known."""

    def __init__(
        self, text: str | None = None, actions: str | None = None, rules: str = "", **args: Any
    ) -> None:
        self.has_games_text = text is None
        self._seen = None if text is None else load_target(text, "games.args.text")
        self._named = None if actions is None else load_target(actions, "games.args.actions")
        super().__init__(rules or f"You are playing {self.title}.")
        if self.meanings and not rules and actions is None:
            self._rules += f" {explained(self.meanings)}"
        if rules or actions is not None:
            self.info = replace(self.info, compact=_compact(self._rules))
        self.env: Any = self._made(args)
        """The library's env."""
        self._args, self._seed = args, 0
        self._moves: tuple[int, ...] = ()  # moves so far

    def _made(self, args: dict[str, Any]) -> Any:
        """Construct the library's env; raises `ConfigError` if it cannot be played."""
        if self.is_open and self.has_games_text:
            args = {"render_mode": "ansi"} | args
        return type(self).make(**args)

    @abstractmethod
    def _begin(self, seed: int) -> None:
        """Start a game with this seed."""

    @abstractmethod
    def _move(self, number: int) -> bool:
        """Make the mover's move; returns whether the game is over."""

    @abstractmethod
    def _look(self) -> tuple[Any, Discrete, Any]:
        """Return the mover's observation, its action space, and a mask of legal actions or None."""

    def reset(self, seats: int, seed: int) -> None:
        """Start a game by the library's own seed."""
        assert seats == self.seats, f"{self.title} has {self.seats} seats"
        self._seed, self._moves = seed % 2**31, ()
        self._begin(self._seed)
        self._show()

    def _show(self) -> None:
        """Set the mover's view and its legal actions."""
        observation, space, mask = self._look()
        self._shown = self._text(observation, self.mover).strip()
        start = int(space.start)
        numbers = range(start, start + int(space.n))
        legal = [number for number in numbers if mask is None or mask[number - start]]
        self._legal = dict(zip(self._names(legal), legal, strict=True))

    def _text(self, observation: Any, seat: int) -> str:
        if self._seen is not None:
            return str(self._seen(self.env, seat, observation))
        if self.is_open:
            return marked(str(self.env.render()))
        if not is_readable(observation):
            raise ConfigError(
                f"games.env = {self.info.name!r}: observations have too many numbers for a text; "
                "set games.N.args.text to module:function(env, seat, observation)"
            )
        return readable(observation)

    def whole_state(self) -> str:
        """Return the view of the seat to move, which is all of them in games of one seat."""
        return in_line(self._shown)

    def _names(self, numbers: Sequence[int]) -> list[str]:
        """Return one-line names of actions, with numbers appended to equal names."""
        if self._named is None:
            return list(map(str, numbers))
        texts = (str(self._named(self.env, self.mover, number)) for number in numbers)
        return told_apart([" ".join(text.split()) for text in texts], numbers)

    def _play(self, number: int) -> bool:
        self._moves = (*self._moves, number)
        if self._move(number):
            return True
        self._show()
        return False

    def copied(self) -> Self:
        """Return a copy of the play with a copy of the library's env.

        Replays all moves in a new env if the env cannot be copied, such as one with an image.
        """
        made = copy.copy(self)
        try:
            made.env = _copy(self.env)
        except (TypeError, AttributeError, pickle.PicklingError):
            made.env = made._made(self._args)
            made._begin(self._seed)
            for number in self._moves:
                made._move(number)
        return made


def explained(meanings: Sequence[str]) -> str:
    """Return the meanings of actions in a sentence.

    >>> explained(["stick", "hit"])
    'Actions: 0 stick, 1 hit.'
    """
    return f"Actions: {', '.join(f'{number} {word}' for number, word in enumerate(meanings))}."


def made_class(
    kind: type[E],
    name: str,
    title: str,
    make: Maker,
    *,
    meanings: Sequence[str],
    is_open: bool,
    is_zero_sum: bool = False,
    is_small: bool = False,
) -> type[E]:
    """Return the class of a game. `is_small`: its tree can be grown, and each seat sees all.

    With a custom text, which may hide part of a position, no tree is grown.
    """
    library = kind.__name__.removesuffix("Environment")
    said = f"{name}. {explained(meanings)}" if meanings else f"{name}."
    info = GameInfo(
        name=f"{library.lower()}:{name}",
        board_shows_all=always,
        small_tree=SmallTree(True, lambda env: env.has_games_text) if is_small else None,
        payoffs=Payoffs(lambda env: env.payoffs(), lambda env: 1.0, zero_sum=is_zero_sum),
        compact=_compact(said),
    )
    own = {"make": staticmethod(make), "title": f"{title} of {library}", "meanings": meanings}
    own |= {"is_open": is_open, "info": info, "__doc__": f"One play of {name}."}
    return type(library, (kind,), own)


def _compact(said: str) -> Compact:
    return Compact(f"{said} Answer with an action.", position)


def check_actions(name: str, *spaces: Any) -> None:
    """Raise `ConfigError` if a seat's action space is not `Discrete`."""
    for space in spaces:
        if not isinstance(space, Discrete):
            raise ConfigError(
                f"games.env = {name!r}: unsupported action space {type(space).__name__}; choose a "
                "game with a Discrete action space"
            )


class _EnvPickler(pickle.Pickler):
    """Pickler that keeps the state of envs; `EzPickle` alone would only reconstruct them."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, EzPickle):
            return _empty, (type(obj),), vars(obj), None, None, _fill
        return NotImplemented


def _empty(kind: type) -> Any:
    return object.__new__(kind)


def _fill(env: Any, state: dict[str, Any]) -> None:
    vars(env).update(state)


def _copy(env: Any) -> Any:
    file = io.BytesIO()
    _EnvPickler(file, pickle.HIGHEST_PROTOCOL).dump(env)
    return pickle.loads(file.getvalue())
