"""The random player."""

import random

from unstable.collectors.players.base import Answer, Player, ServeAdapter, complaint, scripted
from unstable.config import ConfigError, FixedOpponent, GameConfig
from unstable.games.game import Game
from unstable.games.services import lists_legal_moves
from unstable.types import Observation, SeatSpec


class RandomPlayer:
    """Uniform over the legal moves."""

    per_game = False

    @classmethod
    def check(cls, opponent: FixedOpponent, game: GameConfig, field: str) -> None:
        """Raise `ConfigError` for a game that does not list its legal moves."""
        if not lists_legal_moves(game):
            raise ConfigError(
                f"{complaint(opponent, game, field)}: the game does not list its legal moves; "
                "set games.legal_moves to module:function(env), or choose another opponent"
            )

    @classmethod
    def make(
        cls, opponent: FixedOpponent, game: GameConfig, seat: SeatSpec, model: ServeAdapter
    ) -> Player:
        """The player of a seat."""
        return cls()

    async def act(self, observation: Observation, game: Game, seed: int) -> Answer:
        """Any legal move."""
        return scripted(observation, random.Random(seed).choice(game.legal_moves()))
