"""Legal moves: from an env's state, from the list that it prints, or from a user's function."""

import re
from collections.abc import Callable
from typing import Any

from unstable.config import GameConfig
from unstable.games.envs import env_class, is_a
from unstable.targets import load_target


def _grid(env: Any) -> list[str]:
    cells = [cell for row in env.state.game_state["board"] for cell in row]
    return [f"[{index}]" for index, cell in enumerate(cells) if cell == ""]


def _connect_four(env: Any) -> list[str]:
    top = env.state.game_state["board"][0]
    return [f"[col {column}]" for column, cell in enumerate(top) if cell == "."]


def _nim(env: Any) -> list[str]:
    piles = enumerate(env.state.game_state["piles"])
    return [f"[{pile} {take}]" for pile, size in piles for take in range(1, size + 1)]


def _kuhn_poker(env: Any) -> list[str]:
    return [f"[{action}]" for action in env.state.game_state["current_legal_action_tree"]]


def _pig_dice(env: Any) -> list[str]:
    return ["[roll]", "[hold]"]


def _liars_dice(env: Any) -> list[str]:
    """Bids up to the number of dice on the table (the env takes any, but no more can be true)."""
    state = env.state.game_state
    bid, dice = state["current_bid"], sum(state["remaining_dice"].values())
    lowest = (max(1, bid["quantity"]), max(1, bid["face_value"]))
    bids = [
        f"[Bid: {quantity}, {face}]"
        for quantity in range(lowest[0], dice + 1)
        for face in range(lowest[1], 7)
        if (quantity, face) != (bid["quantity"], bid["face_value"])
    ]
    return ["[Call]", *bids] if bid["quantity"] else bids


def _tower_of_hanoi(env: Any) -> list[str]:
    tops = {name: min(disks, default=0) for name, disks in env.state.game_state["towers"].items()}
    return [
        f"[{source} {target}]"
        for source, disk in tops.items()
        for target, below in tops.items()
        if disk and (disk < below or not below)
    ]


def _othello(env: Any) -> list[str]:
    """Any text passes for the seat that cannot move."""
    moves = env.state.game_state["valid_moves"]
    return [f"[{row}, {column}]" for row, column in moves] or ["[pass]"]


_FROM_STATE: dict[str, Callable[[Any], list[str]]] = {
    "TicTacToeEnv": _grid,
    "SimpleTakEnv": _grid,
    "ConnectFourEnv": _connect_four,
    "NimEnv": _nim,
    "KuhnPokerEnv": _kuhn_poker,
    "PigDiceEnv": _pig_dice,
    "LiarsDiceEnv": _liars_dice,
    "OthelloEnv": _othello,
    "TowerOfHanoiEnv": _tower_of_hanoi,
}
_PRINTED = (
    "WildTicTacToeEnv",
    "ReverseTicTacToeEnv",
    "ThreePlayerTicTacToeEnv",
    "CrusadeEnv",
    "SpiteAndMaliceEnv",
    "FifteenPuzzleEnv",
    "ChessEnv",
)
_LIST = re.compile(r"^(?:Available Moves|Valid moves):(.*)$", re.MULTILINE | re.IGNORECASE)


def lists_legal_moves(config: GameConfig) -> bool:
    """Whether `legal_moves` answers for this game."""
    cls = env_class(config)
    return config.legal_moves is not None or any(
        is_a(cls, name) for name in (*_FROM_STATE, *_PRINTED)
    )


def legal_moves(config: GameConfig, env: Any, board: str) -> list[str]:
    """Actions that the env accepts from the seat to move, who was last shown `board`."""
    if config.legal_moves is not None:
        return list(load_target(config.legal_moves)(env))
    for name, moves in _FROM_STATE.items():
        if is_a(type(env), name):
            return moves(env)
    if found := _LIST.search(board):
        return re.findall(r"\[[^\[\]]+\]", found[1])
    raise ValueError(f"{config.key} does not list its legal moves; set games.legal_moves")
