"""Monte Carlo tree search in OpenSpiel's games of perfect information, with random rollouts.

OpenSpiel's own search in C++, the same as in `open_spiel.python.algorithms.mcts`: UCT (Kocsis and
Szepesvari, 2006) that backs up solved positions (MCTS-Solver, Winands et al., 2008).
"""

from typing import Any

from unstable.collectors.players.base import (
    OpponentPlayer,
    Player,
    Position,
    ServeAdapter,
    scripted,
)
from unstable.config import ConfigError, FixedOpponent, GameConfig, MCTSOpponent
from unstable.games.services import game_info, make_environment
from unstable.types import Answer, Observation, SeatSpec

_EXPLORATION = 2.0  # of UCT, in units of the largest payoff
_MEMORY_MB = 1000


class MCTSPlayer(OpponentPlayer):
    """A player that searches the game's own states; its games depend on their seeds alone."""

    mixes = True
    copies = True

    def __init__(self, simulations: int) -> None:
        self._simulations = simulations

    @classmethod
    def check(cls, opponent: FixedOpponent, game: GameConfig, field: str) -> None:
        """Raise `ConfigError` for a game that OpenSpiel cannot search."""
        place = f"{field} = {opponent.key!r} in {game.key}"
        if game.is_driven or game.isolated:
            raise ConfigError(
                f"{place}: MCTS copies the game, which another process plays; choose another "
                "opponent, or set games.N.isolated to false"
            )
        env = make_environment(game)
        spiel = getattr(env, "spiel", None)
        if spiel is None or not game_info(game).perfect_information(env.raw):
            raise ConfigError(
                f"{place}: MCTS plays only OpenSpiel's games of perfect information "
                "(open_spiel:NAME), whose seats move in turn; choose another opponent"
            )
        if spiel.get_type().reward_model.name != "TERMINAL":
            raise ConfigError(
                f"{place}: MCTS plays only games that pay at their end; choose another opponent"
            )

    @classmethod
    def make(
        cls, opponent: FixedOpponent, game: GameConfig, seat: SeatSpec, model: ServeAdapter
    ) -> Player:
        assert isinstance(opponent, MCTSOpponent)
        return cls(opponent.simulations)

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        (action,) = await self.mix(observation, game, seed)
        return scripted(observation, action)

    async def mix(self, observation: Observation, game: Position, seed: int) -> dict[str, float]:
        """Return probability 1 of the best move: proven best, or simulated most often."""
        env = game.copies()().env.raw
        state: Any = env.state
        moves = dict(zip(state.legal_actions(), game.legal_moves(), strict=True))
        import pyspiel  # an optional dependency

        seed %= 2**31
        spiel = state.get_game()
        bot = pyspiel.MCTSBot(
            spiel,
            pyspiel.RandomRolloutEvaluator(1, seed),
            _EXPLORATION * spiel.max_utility(),
            self._simulations,
            _MEMORY_MB,
            True,
            seed,
            False,
        )
        return {moves[bot.mcts_search(state).best_child().action]: 1.0}
