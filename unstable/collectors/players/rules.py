"""The rule bot of a game."""

from unstable.collectors.players.base import another, complaint
from unstable.collectors.players.expert import ExpertPlayer
from unstable.config import ConfigError, FixedOpponent, GameConfig
from unstable.games.catalog.table import RULE_GAMES
from unstable.games.game import Game
from unstable.games.services import game_info


class RulesPlayer(ExpertPlayer):
    """A rule of thumb's move; of several that are as good, any."""

    @classmethod
    def check(cls, opponent: FixedOpponent, game: GameConfig, field: str) -> None:
        """Raise `ConfigError` for a game without a rule bot."""
        if game_info(game).rules is None:
            raise ConfigError(
                f"{complaint(opponent, game, field)}: it plays only {RULE_GAMES}; {another(game)}"
            )

    def moves(self, game: Game) -> dict[str, float]:
        """Probability of each action, by the rule."""
        return game.rule_moves()
