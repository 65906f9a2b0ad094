"""TextArena 1.x's envs as an `Environment`: subclasses of its `GameEnv`, which take bare moves.

They keep every event in one log, draw from a generator of their own, and may print legal moves.
The views of seats are those of TextArena 0.7 (`textarena.py`).
"""

import random
import re
from functools import cache
from typing import Any

from textarena import ObservationType
from textarena.envs.registration import ENV_REGISTRY

from unstable.config import GameConfig
from unstable.games.chance import Chance, seed_draws
from unstable.games.environment import EnvStep, ServiceDownError
from unstable.games.info import GameInfo
from unstable.games.textarena import TextArenaEnvironment, env_class
from unstable.games.words import offline
from unstable.types import Observation

_LIST = re.compile(r"\b(?:available|valid|legal) (?:moves|actions|jumps)[^:\n]*:(.*)$", re.I | re.M)
_QUOTED = re.compile(r"'([^'\n]+)'")
_TURNS = 200  # turns of the games that show whether boards list the legal moves
_EVERYONE = -1  # recipient of an event that every seat sees
_printing: dict[tuple[str, int, str], bool] = {}  # by id, seats and arguments


class BareTextArenaEnvironment(TextArenaEnvironment):
    """One play of a TextArena 1.x env, with the metadata of its game."""

    action_form = "bare"
    _read: int  # number of events that the seats' views have

    def _make(self) -> Any:
        spec = ENV_REGISTRY.get(self._config.env)  # None: module:Class
        with offline():
            args = {**(spec.kwargs if spec else {}), **self._config.args}
            return _on_shared_chance(env_class(self._config))(**args)

    def reset(self, seats: int, seed: int) -> None:
        self._check(seats)
        self._read = 0
        seed_draws(seed)
        super().reset(seats, seed)

    def observe(self) -> Observation:
        """Return the mover's view, with the board that an env may add to the events."""
        self._env.state.get_current_player_observation()  # the events, which the view has
        _, added = self._env.get_observation()
        boards = [each for each in added if each[2] is ObservationType.GAME_BOARD]
        self._views[self.mover].add(boards)
        return self._views[self.mover].observation()

    def legal_moves(self) -> list[str]:
        """Return the legal moves of the catalog, or the moves that the mover's board prints."""
        if self.info.legal_moves is not None:
            return self.info.legal_moves(self._env)
        if found := printed_moves(self.board):
            return found
        raise ValueError(f"{self._config.key} does not list its legal moves; set games.legal_moves")

    def step(self, action: str) -> EnvStep:
        """Pass the text to the env; again if its judge does not answer, which is no move."""
        number, errors = self.mover, self._env.state.error_count
        try:
            self._env.step(action)
            while self._env.state.retry_count:
                self._read = len(self._env.state.events)
                self._env.step(action)
        except RuntimeError as error:
            if self._env.state.retry_count:
                raise ServiceDownError(str(error)) from error
            raise
        refused, over = self._env.state.error_count > errors, self._env.state.done
        return self._taken(number, action, over=over, refused=refused)

    def _check(self, seats: int) -> None:
        """Raise `AssertionError` for an unsupported number of seats."""
        fewest, most = self._env.min_players, self._env.max_players or seats
        allowed = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        assert fewest <= seats <= most, f"the game needs {allowed} seats"
        try:
            self._env.check_num_players(seats)
        except ValueError as error:
            raise AssertionError(str(error)) from error

    def _share_messages(self, mover: int | None, refused: bool) -> None:
        """Add new events to the views, without actions if the env describes them otherwise."""
        events = self._env.state.events
        new, self._read = events[self._read :], len(events)
        if not self._env.mdp_includes_actions:
            new = [event for event in new if event[2] is not ObservationType.PLAYER_ACTION]
        for number, view in enumerate(self._views):
            seen = [event[:3] for event in new if event[3] in (_EVERYONE, number)]
            view.add(seen, refused=refused, mine=number == mover)


def printed_moves(board: str) -> list[str]:
    """Return the moves that a board lists, in quotes or between commas; empty if it lists none.

    >>> printed_moves("Pot: 2\\nYour available actions are: 'check', 'bet'")
    ['check', 'bet']
    >>> printed_moves("Legal moves: a1 b2, c1 c2")
    ['a1 b2', 'c1 c2']
    """
    last = (_LIST.findall(board) or [""])[-1]
    return _QUOTED.findall(last) or [move for part in last.split(",") if (move := part.strip())]


def prints_moves(config: GameConfig) -> bool:
    """Return whether each board of random games lists moves, and the env refuses only other ones.

    Errors of the env propagate from the first call; later ones then return False.
    """
    key = (config.env, config.seats, repr(config.args))
    if key not in _printing:
        _printing[key] = False
        _printing[key] = _prints_moves(config)
    return _printing[key]


def _prints_moves(config: GameConfig) -> bool:
    rng = random.Random(0)
    with Chance(0):
        env, over = BareTextArenaEnvironment(config, GameInfo()), True
        for turn in range(_TURNS):
            if over:
                env.reset(config.seats, turn)
            takes_any_text = turn == 0 and not env.step("?").refused
            if takes_any_text or not (moves := printed_moves(env.board)):
                return False
            over, refused, _ = env.step(rng.choice(moves))
            if refused:
                return False
    return True


class _Draws:
    """Generator of an env's draws: functions of `random`, whose state is the game's own."""

    def __getattr__(self, name: str) -> Any:
        return getattr(random, name)


_draws = _Draws()


@cache
def _on_shared_chance(env: type) -> type:
    """Return a class of envs that draw from `random`, so that `Chance` and trees apply to them."""

    def reduced(self: Any) -> tuple[Any, ...]:  # for copies: the new class has no place to import
        return _blank, (env,), vars(self)

    shared = property(lambda _: _draws, lambda _, generator: None)
    names = {"rng": shared, "__reduce__": reduced, "__module__": env.__module__}
    return type(env.__name__, (env,), names)


def _blank(env: type) -> Any:
    return object.__new__(_on_shared_chance(env))
