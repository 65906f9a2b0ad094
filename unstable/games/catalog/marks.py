"""Boards where a move is a mark in an empty cell: SimpleTak, ThreePlayerTicTacToe."""

from typing import Any

from unstable.games.catalog import rules, tic_tac_toe
from unstable.games.info import Compact, GameInfo, SmallTree, always


def tak_position(env: Any) -> str:
    """X for the seat's own stones and O for the other's, such as 0 X 2/O 4 5/6 7 8."""
    return _cells(env, marks="OX", shown="XO")


def three_player_position(env: Any) -> str:
    """X for the seat's own marks, Y for the next seat's, Z for those of the one after it."""
    return _cells(env, marks="ABC", shown="XYZ")


def _cells(env: Any, marks: str, shown: str) -> str:
    """The cells, rows apart; `marks` are the env's by seat, `shown` ours from the mover on."""
    seat, board = env.state.current_player_id, env.state.game_state["board"]
    names = {mark: shown[(place - seat) % len(marks)] for place, mark in enumerate(marks)}
    return "/".join(
        " ".join(
            names.get(cell, str(row * len(cells) + column)) for column, cell in enumerate(cells)
        )
        for row, cells in enumerate(board)
    )


TAK = GameInfo(
    env="SimpleTakEnv",
    name="SimpleTak",
    legal_moves=tic_tac_toe.legal_moves,
    rules=rules.tak,
    board_shows_all=always,
    small_tree=SmallTree(is_open=True, fits=lambda env: env.board_size <= 3),
    compact=Compact(
        "SimpleTak: a path of your stones from one edge of the board to the opposite one wins; "
        "cells touch sideways and up and down. The cells of each row, rows apart by a /: X is "
        "yours, O is the other's, a number is empty. Answer with the number of an empty cell, "
        "nothing else.",
        tak_position,
    ),
)
THREE_PLAYERS = GameInfo(
    env="ThreePlayerTicTacToeEnv",
    name="ThreePlayerTicTacToe",
    legal_moves=tic_tac_toe.legal_moves,
    rules=rules.three_player_tic_tac_toe,
    board_shows_all=always,
    compact=Compact(
        "TicTacToe for three: four of a seat's marks in a row win. The cells of each row, rows "
        "apart by a /: X is yours, Y the next player's, Z the one's who moves after that, a number "
        "is empty. Answer with the number of an empty cell, nothing else.",
        three_player_position,
    ),
)
