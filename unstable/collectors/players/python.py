"""A user's own player, in Python."""

import inspect
import random
from collections.abc import Callable
from typing import Any

from unstable.collectors.players.base import Answer, OpponentPlayer, Player, ServeAdapter, scripted
from unstable.config import FixedOpponent, GameConfig, PythonOpponent
from unstable.games.game import Game
from unstable.plugins import check_target, load_target
from unstable.prompts import observation_text
from unstable.types import Observation, SeatSpec


class PythonPlayer(OpponentPlayer):
    """A user's own: an instance of `module:Class` (made anew for each game), or a function.

    It is called with the observation's text and returns the action; it may be async. If it takes an
    argument `rng`, it is given a `random.Random` that makes its games repeatable.
    """

    per_game = True
    waits = True

    def __init__(self, target: str) -> None:
        found: Any = load_target(target)
        self._target = target
        self._call: Callable[..., Any] = found() if isinstance(found, type) else found
        self._takes_rng = "rng" in inspect.signature(self._call).parameters

    @classmethod
    def check(cls, opponent: FixedOpponent, game: GameConfig, field: str) -> None:
        """Raise `ConfigError` for a target that cannot be called."""
        assert isinstance(opponent, PythonOpponent)
        check_target(f"{field}.target", opponent.target, "give module:Class")

    @classmethod
    def make(
        cls, opponent: FixedOpponent, game: GameConfig, seat: SeatSpec, model: ServeAdapter
    ) -> Player:
        """The player of a seat."""
        assert isinstance(opponent, PythonOpponent)
        return cls(opponent.target)

    async def act(self, observation: Observation, game: Game, seed: int) -> Answer:
        """What the user's code makes of the observation."""
        chance = {"rng": random.Random(seed)} if self._takes_rng else {}
        action = self._call(observation_text(observation), **chance)
        if inspect.isawaitable(action):
            action = await action
        if not isinstance(action, str):
            raise TypeError(
                f"{self._target} returned {type(action).__name__}, not the action's text"
            )
        return scripted(observation, action)
