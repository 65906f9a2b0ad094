"""Games of which no more is known than their legal moves, or than their teams."""

from typing import Any

from unstable.games.info import GameInfo, Teams


def othello_moves(env: Any) -> list[str]:
    """Any text passes for the seat that cannot move."""
    moves = env.state.game_state["valid_moves"]
    return [f"[{row}, {column}]" for row, column in moves] or ["[pass]"]


def halves(env: Any, seats: int) -> tuple[tuple[int, ...], ...]:
    """Two teams of the same size, the first seats and the last."""
    return tuple(range(seats // 2)), tuple(range(seats // 2, seats))


_PRINTED = (
    "ReverseTicTacToe",
    "Crusade",
    "SpiteAndMalice",
    "Stratego",
    "FifteenPuzzle",
    "Chess",
)
"""Games whose boards list the legal moves."""
GAMES = (
    GameInfo(env="OthelloEnv", name="Othello", legal_moves=othello_moves),
    GameInfo(env="TabooEnv", name="Taboo", teams=Teams(halves)),
    *(GameInfo(env=f"{name}Env", name=name, prints_moves=True) for name in _PRINTED),
)
