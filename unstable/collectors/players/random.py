"""The random player."""

import random

from unstable.collectors.players.base import Answer, OpponentPlayer, another, complaint, scripted
from unstable.config import ConfigError, FixedOpponent, GameConfig
from unstable.games.game import Game
from unstable.games.services import lists_legal_moves
from unstable.types import Observation


class RandomPlayer(OpponentPlayer):
    """Uniform over the legal moves."""

    @classmethod
    def check(cls, opponent: FixedOpponent, game: GameConfig, field: str) -> None:
        """Raise `ConfigError` for a game that does not list its legal moves."""
        if not lists_legal_moves(game):
            raise ConfigError(
                f"{complaint(opponent, game, field)}: the game does not list its legal moves; "
                f"set games.legal_moves to module:function(env), or {another(game)}"
            )

    async def act(self, observation: Observation, game: Game, seed: int) -> Answer:
        """Any legal move."""
        return scripted(observation, random.Random(seed).choice(game.legal_moves()))
