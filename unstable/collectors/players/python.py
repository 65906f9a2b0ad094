"""A user's custom player in Python."""

import inspect
import random
from collections.abc import Callable
from functools import partial
from typing import Any

from unstable.collectors.players.base import (
    OpponentPlayer,
    Player,
    Position,
    ServeAdapter,
    scripted,
)
from unstable.config import ConfigError, FixedOpponent, GameConfig, PythonOpponent, shown
from unstable.config.plugins import check_call, load_target
from unstable.prompts import observation_text
from unstable.types import Answer, Observation, SeatSpec


class PythonPlayer(OpponentPlayer):
    """A user's custom player: a function, or an instance of `module:Class`, one per game.

    It receives the observation's text and returns the action; it may be async. If it takes an
    argument `rng`, it receives a `random.Random` that makes its games repeatable.
    """

    per_game = True
    waits = True

    def __init__(self, target: str) -> None:
        found: Any = load_target(target)
        self._target = target
        self._call: Callable[..., Any] = found() if isinstance(found, type) else found
        self._takes_rng = _takes_rng(self._call)

    @classmethod
    def check(cls, opponent: FixedOpponent, game: GameConfig, field: str) -> None:
        """Raise `ConfigError` for a target that cannot be called; creates no instance of it."""
        assert isinstance(opponent, PythonOpponent)
        place = f"{field}.target = {shown(opponent.target)}"
        remedy = "name module:Class, created without arguments, called with an observation's text"
        found = load_target(opponent.target, f"{field}.target")
        if not isinstance(found, type):
            _check_call(place, found, remedy, "observation")
            return
        check_call(place, found, remedy)
        calls = [vars(base)["__call__"] for base in found.__mro__ if "__call__" in vars(base)]
        call = calls[0] if calls else None
        _check_call(place, call, remedy, "self", "observation")

    @classmethod
    def make(
        cls, opponent: FixedOpponent, game: GameConfig, seat: SeatSpec, model: ServeAdapter
    ) -> Player:
        assert isinstance(opponent, PythonOpponent)
        return cls(opponent.target)

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        chance = {"rng": random.Random(seed)} if self._takes_rng else {}
        action = self._call(observation_text(observation), **chance)
        if inspect.isawaitable(action):
            action = await action
        if not isinstance(action, str):
            raise TypeError(
                f"{self._target} returned {type(action).__name__}; return the action as str"
            )
        return scripted(observation, action)


def _check_call(place: str, call: Any, remedy: str, *given: str) -> None:
    """Raise `ConfigError` if it cannot be called; passes `rng` to callables that take it."""
    if not callable(call):
        raise ConfigError(f"{place}: not callable; {remedy}")
    check_call(place, partial(call, rng=None) if _takes_rng(call) else call, remedy, *given)


def _takes_rng(call: Callable[..., Any]) -> bool:
    """Return whether it takes an argument `rng`; False without a readable signature."""
    try:
        return "rng" in inspect.signature(call).parameters
    except ValueError:
        return False
