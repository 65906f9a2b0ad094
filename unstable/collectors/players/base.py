"""What every player has in common: asked with an observation and a seed, it answers."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from unstable.config import FixedOpponent, GameConfig
from unstable.prompts import observation_text, shorten
from unstable.types import Answer, Observation, SeatSpec


class LeftError(Exception):
    """A player leaves the game, which ends there. LeftError("the person left")"""


class Position(Protocol):
    """A game at a turn, as far as players may ask about it; `Game` is one."""

    @property
    def config(self) -> GameConfig:
        """The game's section."""

    @property
    def turns(self) -> int:
        """How many were made."""

    def legal_moves(self) -> list[str]:
        """The legal actions of the seat to move; `ValueError` where nobody lists them."""

    def expert_moves(self) -> dict[str, float]:
        """Probabilities of an expert's actions; `ValueError` where there is none."""

    def rule_moves(self) -> dict[str, float]:
        """Probabilities of a rule bot's actions; `ValueError` where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldPosition:
    """A position of a game that is elsewhere, with what was told of it."""

    config: GameConfig
    turns: int
    legal: Sequence[str] | None = None
    expert: dict[str, float] | None = None

    def legal_moves(self) -> list[str]:
        """The legal moves that were told; `ValueError` where none were."""
        if not self.legal:
            raise ValueError(
                "the seat's player needs the legal moves; send them as legal_moves of the request"
            )
        return list(self.legal)

    def expert_moves(self) -> dict[str, float]:
        """Probabilities that were told; `ValueError` where none were."""
        if self.expert is None:
            raise ValueError(f"{self.config.key} has no expert")
        return self.expert

    def rule_moves(self) -> dict[str, float]:
        """Raise `ValueError`: rule bots play where the game is."""
        raise ValueError(f"{self.config.key} has no rule bot")


class Player(Protocol):
    """A player of one game, whose every choice follows from the turn's `seed`."""

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        """The answer of the seat to move; awaits whatever takes time."""


ServeAdapter = Callable[[str], Player]
"""A local model with the adapter of that name, as it plays the game at hand."""


class OpponentPlayer:
    """The player of a kind of opponent, named by its section as `player`."""

    per_game = False
    """Whether each game needs one of its own; else all games of an env share one."""
    waits = False
    """Whether it may wait for something, and so is given `games.turn_timeout` for a turn."""
    libraries: tuple[str, ...] = ()
    """What it imports, which is done before any game: it may take seconds."""

    @classmethod
    def check(cls, opponent: FixedOpponent, game: GameConfig, field: str) -> None:
        """Raise `ConfigError` where this opponent cannot play this game; loads no model.

        `field` is where the config names it, such as opponents.fixed.0 or eval.opponents.
        """

    @classmethod
    def make(
        cls, opponent: FixedOpponent, game: GameConfig, seat: SeatSpec, model: ServeAdapter
    ) -> Player:
        """The player of a seat; by default one that knows neither seat nor game."""
        return cls()

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        """The answer of the seat to move."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedPlayer:
    """Raises `TimeoutError` where the player has not answered by `games.turn_timeout`.

    What blocks the event loop cannot be ended so: `collectors/watch.py` looks after that.
    """

    player: Player
    name: str

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        """The player's answer, in time."""
        seconds = game.config.turn_timeout
        try:
            async with asyncio.timeout(seconds) as timer:
                return await self.player.act(observation, game, seed)
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise TimeoutError(
                f"{self.name} has not answered in games.turn_timeout = {seconds:g} s"
            ) from error


def scripted(observation: Observation, action: str) -> Answer:
    """The answer of a player that is not asked by a prompt."""
    action, cut = shorten(action)
    return Answer(
        observation=observation_text(observation), text=action, action=action, cut_characters=cut
    )
