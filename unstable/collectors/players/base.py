"""The interface of players: an observation and a seed in, an answer out."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from unstable.config import FixedOpponent, GameConfig, MovesKept
from unstable.games.game import Game
from unstable.prompts import observation_text, shorten
from unstable.types import Answer, Observation, SeatSpec


class LeftError(Exception):
    """An error by which a player leaves the game and ends it. LeftError("the person left")"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldPosition:
    """A position of a game in another process, with the information received about it."""

    config: GameConfig
    turns: int
    legal: Sequence[str] | None = None
    expert: dict[str, float] | None = None
    rules: dict[str, float] | None = None
    state: str | None = None

    def legal_moves(self) -> list[str]:
        """Return the received legal moves; `ValueError` without any."""
        if not self.legal:
            raise ValueError(
                "legal moves missing: the seat's player needs them; send legal_moves in the request"
            )
        return list(self.legal)

    def whole_state(self) -> str:
        """Return the received state; `ValueError` without one."""
        if self.state is None:
            raise ValueError(f"{self.config.key} does not tell its state")
        return self.state

    def copies(self) -> Callable[[], Game]:
        """Raise `ValueError`: the game is in another process."""
        raise ValueError(f"{self.config.key}: another process plays it, so it cannot be copied")

    def expert_moves(self) -> dict[str, float]:
        """Return the received probabilities; `ValueError` without any."""
        if self.expert is None:
            raise ValueError(f"{self.config.key} has no expert")
        return self.expert

    def rule_moves(self) -> dict[str, float]:
        """Return the received probabilities; `ValueError` without any."""
        if self.rules is None:
            raise ValueError(f"{self.config.key} has no rule bot")
        return self.rules


MovesNeeded = MovesKept | Literal["rules"]
"""Information on a position's moves that local models need; rules: those of the rule bot."""
Position = Game | ToldPosition
"""A game at a turn, with the methods that players may call."""


class Player(Protocol):
    """A player of one game, whose choices depend on the turn's `seed` alone."""

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        """Return the answer of the seat to move; awaits anything that takes time."""


ServeAdapter = Callable[[str], Player]
"""A function: adapter name -> local model with it, as a player of the current game."""


class OpponentPlayer:
    """The player for a kind of fixed opponent."""

    per_game = False
    """True if each game needs its own player; else all games of an env share one."""
    waits = False
    """True if it may wait for something; `games.turn_timeout` then limits its turns."""
    mixes = False
    """True if it states its moves' probabilities by `mix`, so that it can be a teacher."""
    copies = False
    """True if it copies the game or its model, so that both must be in the actor's process."""
    libraries: tuple[str, ...] = ()
    """Modules that it imports, loaded before any game because that may take seconds."""

    @classmethod
    def check(cls, opponent: FixedOpponent, game: GameConfig, field: str) -> None:
        """Raise `ConfigError` if this opponent cannot play this game; loads no model.

        `field` is the config field that names it, such as opponents.fixed.0 or eval.opponents.
        """

    @classmethod
    def make(
        cls, opponent: FixedOpponent, game: GameConfig, seat: SeatSpec, model: ServeAdapter
    ) -> Player:
        """Return the player of a seat; by default it depends on neither seat nor game."""
        return cls()

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        raise NotImplementedError

    async def mix(self, observation: Observation, game: Position, seed: int) -> dict[str, float]:
        """Return the probability of each action, if the class `mixes`; others may be missing."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitedPlayer:
    """A player with a timeout: raises `TimeoutError` without an answer by `games.turn_timeout`.

    The timeout cannot end code that blocks the event loop, which `collectors/watch.py` watches.
    """

    player: Player
    name: str

    @property
    def per_game(self) -> bool:
        """True if the player belongs to its game alone."""
        return bool(getattr(self.player, "per_game", False))

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        seconds = game.config.turn_timeout
        try:
            async with asyncio.timeout(seconds) as timer:
                return await self.player.act(observation, game, seed)
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise TimeoutError(
                f"{self.name} did not answer within games.turn_timeout = {seconds:g} s"
            ) from error


def scripted(observation: Observation, action: str) -> Answer:
    """Return the answer of a player without a prompt, with the action as its text."""
    action, cut = shorten(action)
    return Answer(
        observation=observation_text(observation), text=action, action=action, cut_characters=cut
    )
