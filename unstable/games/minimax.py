"""Perfect play: TicTacToe by minimax, Nim by the nim-sum (Bouton 1901, Annals of Mathematics 3)."""

from functools import cache, reduce
from operator import xor
from typing import Any

from unstable.config import GameConfig
from unstable.games.envs import env_class, is_a

Board = tuple[str, ...]  # nine cells, row by row: "O", "X" or ""
_LINES = (
    *((row, row + 1, row + 2) for row in (0, 3, 6)),
    *((column, column + 3, column + 6) for column in (0, 1, 2)),
    (0, 4, 8),
    (2, 4, 6),
)


def knows(config: GameConfig) -> bool:
    """Whether `best_moves` answers for this game."""
    cls = env_class(config)
    return is_a(cls, "TicTacToeEnv") or is_a(cls, "NimEnv")


def best_moves(env: Any) -> list[str]:
    """Every optimal action of the seat to move, in a game that `knows` answers for."""
    state = env.state.game_state
    if is_a(type(env), "NimEnv"):
        return _nim(state["piles"])
    board = tuple(cell for row in state["board"] for cell in row)
    return [f"[{cell}]" for cell in _tic_tac_toe(board)[1]]


@cache
def _tic_tac_toe(board: Board) -> tuple[int, tuple[int, ...]]:
    """Worth of the board to the mover (1 win, 0 draw, -1 loss), and the cells that reach it."""
    mover, other = ("X", "O") if board.count("O") > board.count("X") else ("O", "X")
    if any(all(board[cell] == other for cell in line) for line in _LINES):
        return -1, ()
    worths = {
        cell: -_tic_tac_toe((*board[:cell], mover, *board[cell + 1 :]))[0]
        for cell in range(9)
        if not board[cell]
    }
    if not worths:
        return 0, ()
    best = max(worths.values())
    return best, tuple(cell for cell, worth in worths.items() if worth == best)


def _nim(piles: list[int]) -> list[str]:
    """Takes that leave a nim-sum of zero; every take where none does, since all of them lose."""
    nim_sum = reduce(xor, piles)
    winning = [
        f"[{pile} {size - (size ^ nim_sum)}]"
        for pile, size in enumerate(piles)
        if size ^ nim_sum < size
    ]
    return winning or [
        f"[{pile} {take}]" for pile, size in enumerate(piles) for take in range(1, size + 1)
    ]
