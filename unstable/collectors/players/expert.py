"""The expert of a game."""

import random

from unstable.collectors.players.base import Answer, OpponentPlayer, another, complaint, scripted
from unstable.config import ConfigError, FixedOpponent, GameConfig
from unstable.games.catalog.table import EXPERT_GAMES
from unstable.games.game import Game
from unstable.games.services import game_info
from unstable.types import Observation


class ExpertPlayer(OpponentPlayer):
    """Uniform over an expert's best moves, or an equilibrium's mix."""

    @classmethod
    def check(cls, opponent: FixedOpponent, game: GameConfig, field: str) -> None:
        """Raise `ConfigError` for a game without an expert."""
        if game_info(game).expert is None:
            raise ConfigError(
                f"{complaint(opponent, game, field)}: it plays only {EXPERT_GAMES}; {another(game)}"
            )

    async def act(self, observation: Observation, game: Game, seed: int) -> Answer:
        """A move of the expert's."""
        moves = self.moves(game)
        (action,) = random.Random(seed).choices(list(moves), list(moves.values()))
        return scripted(observation, action)

    def moves(self, game: Game) -> dict[str, float]:
        """Probability of each action."""
        return game.expert_moves()
