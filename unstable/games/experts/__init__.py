"""Experts: how a perfect or a strong player moves, by what the seat to move may know alone.

Each file is the theory of a game: actions with their probabilities, and why one is played. They are
the opponent `minimax` and the teachers of supervised training.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from unstable.config import GameConfig
from unstable.games.envs import env_class, is_a
from unstable.games.experts import connect_four, hanoi, kuhn, nim, tic_tac_toe
from unstable.games.game import Game


class _Expert(NamedTuple):
    game: str
    moves: Callable[[Any], dict[str, float]]
    reason: Callable[[Any, str], str]


_EXPERTS = {
    "TicTacToeEnv": _Expert("TicTacToe", tic_tac_toe.moves, tic_tac_toe.reason),
    "WildTicTacToeEnv": _Expert("WildTicTacToe", tic_tac_toe.wild_moves, tic_tac_toe.wild_reason),
    "NimEnv": _Expert("Nim", nim.moves, nim.reason),
    "ConnectFourEnv": _Expert("ConnectFour", connect_four.moves, connect_four.reason),
    "TowerOfHanoiEnv": _Expert("TowerOfHanoi", hanoi.moves, hanoi.reason),
    "KuhnPoker": _Expert("unstable.games.kuhn:KuhnPoker", kuhn.moves, kuhn.reason),
}
EXPERT_GAMES = ", ".join(expert.game for expert in _EXPERTS.values())
"""The games with an expert, for messages."""


def has_expert(config: GameConfig) -> bool:
    """Whether `expert_moves` answers for this game."""
    return _find(env_class(config)) is not None


def expert_moves(game: Game) -> dict[str, float]:
    """Probability of each action that an expert would play for the seat to move.

    The optimal moves evenly, or an equilibrium's mix; `ValueError` for a game without an expert.
    """
    return _expert(game).moves(game.env)


def expert_reason(game: Game, action: str) -> str:
    """One true sentence on what a legal action of the seat to move does; `ValueError` as above."""
    return _expert(game).reason(game.env, action)


def _expert(game: Game) -> _Expert:
    expert = _find(type(game.env))
    if expert is None:
        raise ValueError(f"{game.config.key} has no expert; these games have one: {EXPERT_GAMES}")
    return expert


def _find(cls: type) -> _Expert | None:
    return next((expert for name, expert in _EXPERTS.items() if is_a(cls, name)), None)
