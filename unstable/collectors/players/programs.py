"""Programs as players: by a game's list of legal moves, its expert or its rule bot."""

import random

from unstable.collectors.players.base import (
    OpponentPlayer,
    Position,
    another,
    complaint,
    scripted,
)
from unstable.config import ConfigError, FixedOpponent, GameConfig
from unstable.config.plugins import registered
from unstable.games.catalog.table import EXPERT_GAMES
from unstable.games.services import game_info, lists_legal_moves, rule_bot
from unstable.types import Answer, Observation


class RandomPlayer(OpponentPlayer):
    """Uniform over the legal moves."""

    @classmethod
    def check(cls, opponent: FixedOpponent, game: GameConfig, field: str) -> None:
        """Raise `ConfigError` for a game that does not list its legal moves."""
        if not (lists_legal_moves(game) or game.is_driven):  # whose programs may list them
            raise ConfigError(
                f"{complaint(opponent, game, field)}: the game does not list its legal moves; "
                f"set games.legal_moves to module:function(env), or {another(game)}"
            )

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        """Any legal move."""
        return scripted(observation, random.Random(seed).choice(game.legal_moves()))


class ExpertPlayer(OpponentPlayer):
    """Uniform over an expert's best moves, or an equilibrium's mix."""

    @classmethod
    def check(cls, opponent: FixedOpponent, game: GameConfig, field: str) -> None:
        """Raise `ConfigError` for a game without an expert."""
        if game_info(game).expert is None:
            raise ConfigError(
                f"{complaint(opponent, game, field)}: it plays only {EXPERT_GAMES}; {another(game)}"
            )

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        """A move of the expert's."""
        moves = self.moves(game)
        (action,) = random.Random(seed).choices(list(moves), list(moves.values()))
        return scripted(observation, action)

    def moves(self, game: Position) -> dict[str, float]:
        """Probability of each action."""
        return game.expert_moves()


class RulesPlayer(ExpertPlayer):
    """A rule of thumb's move; of several that are as good, any."""

    @classmethod
    def check(cls, opponent: FixedOpponent, game: GameConfig, field: str) -> None:
        """Raise `ConfigError` for a game without a rule bot."""
        if rule_bot(game_info(game)) is None:
            games = ", ".join(sorted(registered("rules")))
            raise ConfigError(
                f"{complaint(opponent, game, field)}: it plays only {games}; {another(game)}"
            )

    def moves(self, game: Position) -> dict[str, float]:
        """Probability of each action, by the rule."""
        return game.rule_moves()
