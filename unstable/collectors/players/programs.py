"""Programs as players: they use a game's list of legal moves, its expert or its rule bot."""

import random

from unstable.collectors.players.base import OpponentPlayer, Position, scripted
from unstable.config import ConfigError, FixedOpponent, GameConfig
from unstable.config.plugins import registered
from unstable.games.catalog.table import EXPERT_GAMES
from unstable.games.services import game_info, lists_legal_moves, programs, rule_bot
from unstable.types import Answer, Observation


class RandomPlayer(OpponentPlayer):
    """A player that draws uniformly from the legal moves."""

    @classmethod
    def check(cls, opponent: FixedOpponent, game: GameConfig, field: str) -> None:
        """Raise `ConfigError` for a game that does not list its legal moves."""
        if not (lists_legal_moves(game) or game.is_driven):  # its driver may list them
            why = "the game does not list its legal moves; set games.legal_moves to"
            raise _refusal(opponent, game, field, f"{why} module:function(env), or")

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        return scripted(observation, random.Random(seed).choice(game.legal_moves()))


class ExpertPlayer(OpponentPlayer):
    """A player of an expert's best moves, uniformly, or of an equilibrium's mix."""

    mixes = True

    @classmethod
    def check(cls, opponent: FixedOpponent, game: GameConfig, field: str) -> None:
        """Raise `ConfigError` for a game without an expert."""
        if game_info(game).expert is None:
            raise _refusal(opponent, game, field, f"it plays only {EXPERT_GAMES};")

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        moves = await self.mix(observation, game, seed)
        (action,) = random.Random(seed).choices(list(moves), list(moves.values()))
        return scripted(observation, action)

    async def mix(self, observation: Observation, game: Position, seed: int) -> dict[str, float]:
        return game.expert_moves()


class RulesPlayer(ExpertPlayer):
    """A player of a rule bot's moves; draws among moves that are equally good."""

    @classmethod
    def check(cls, opponent: FixedOpponent, game: GameConfig, field: str) -> None:
        """Raise `ConfigError` for a game without a rule bot."""
        if rule_bot(game_info(game)) is None:
            games = ", ".join(sorted(registered("rules")))
            raise _refusal(opponent, game, field, f"it plays only {games};")

    async def mix(self, observation: Observation, game: Position, seed: int) -> dict[str, float]:
        return game.rule_moves()


def _refusal(opponent: FixedOpponent, game: GameConfig, field: str, why: str) -> ConfigError:
    """Return the error for an opponent that cannot play a game, with the kinds that can."""
    kinds = " or ".join(programs(game))
    such = f", such as {kinds}" if kinds else ""
    return ConfigError(
        f"{field} = {opponent.key!r} in {game.key}: {why} choose another opponent{such}"
    )
