"""TextArena's games without an expert: legal moves, short forms, teams."""

from itertools import product
from typing import Any

from unstable.games.catalog import tic_tac_toe
from unstable.games.info import Compact, GameInfo, SmallTree, Teams, always, with_turns_left

# Dice


def pig_moves(env: Any) -> list[str]:
    """Return the two moves, which are always legal."""
    return ["[roll]", "[hold]"]


def pig_position(env: Any) -> str:
    """Return the seat's score, the other's, the turn's total, and the score that wins."""
    scores, seat = env.state.game_state["scores"], env.state.current_player_id
    turn_total = env.state.game_state["turn_total"]
    return f"{scores[seat]} {scores[1 - seat]} {turn_total} {env.winning_score}"


def liars_moves(env: Any) -> list[str]:
    """Return bids up to the number of dice; the env accepts more, but they cannot be true."""
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


def liars_state(env: Any) -> str:
    """Return each seat's dice, the seats that are out, in order, and the bid: 125/66 - 2x6."""
    state, out = env.state.game_state, env.state.elimination_order
    dice = "/".join("".join(map(str, sorted(own))) for own in state["dice_rolls"].values())
    bid = state["current_bid"]
    return f"{dice} {' '.join(map(str, out)) or '-'} {bid['quantity']}x{bid['face_value']}"


PIG = GameInfo(
    env="PigDiceEnv",
    name="PigDice",
    legal_moves=pig_moves,
    board_shows_all=always,
    perfect_information=always,
    compact=Compact(
        "Pig: roll the die as often as you like; 2 to 6 add to your turn's total, a 1 loses it and "
        "ends the turn; hold adds the total to your score and ends the turn. A line is your score, "
        "the other's, your turn's total, and the score that wins. Answer with roll or hold, "
        "nothing else.",
        pig_position,
    ),
    state=with_turns_left(pig_position),
)
LIARS = GameInfo(env="LiarsDiceEnv", name="LiarsDice", legal_moves=liars_moves, state=liars_state)


# Marks on a board


def tak_position(env: Any) -> str:
    """Return the cells, X for the seat's stones and O for the other's: 0 X 2/O 4 5/6 7 8."""
    return _cells(env, marks="OX", shown="XO")


def three_player_position(env: Any) -> str:
    """Return the cells, X for the seat's marks, Y for the next seat's, Z for the third seat's."""
    return _cells(env, marks="ABC", shown="XYZ")


def _cells(env: Any, marks: str, shown: str) -> str:
    """Return the cells by row. `marks` are the env's by seat, `shown` ours from the mover on."""
    seat, board = env.state.current_player_id, env.state.game_state["board"]
    names = {mark: shown[(index - seat) % len(marks)] for index, mark in enumerate(marks)}
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
    board_shows_all=always,
    perfect_information=always,
    small_tree=SmallTree(
        is_open=True, fits=lambda env: env.board_size <= 3, variants="args.board_size = 3"
    ),
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
    board_shows_all=always,
    perfect_information=always,
    compact=Compact(
        "TicTacToe for three: four of a seat's marks in a row win. The cells of each row, rows "
        "apart by a /: X is yours, Y the next player's, Z the one's who moves after that, a number "
        "is empty. Answer with the number of an empty cell, nothing else.",
        three_player_position,
    ),
    state=three_player_position,
)


# Cards, and others


def briscola_moves(env: Any) -> list[str]:
    """Return a move for each card in the hand, by its index from 1."""
    hand = env.state.game_state["players"][env.state.current_player_id]["hand"]
    return [f"[play {index}]" for index in range(1, len(hand) + 1)]


def golf_moves(env: Any) -> list[str]:
    """Return draw and take; then a swap with each place and, unless the card was taken, discard."""
    state = env.state.game_state
    if state["turn_phase"] == "draw":
        return ["[draw]", "[take]"] if state["discard_pile"] else ["[draw]"]
    places = product(range(1, env.num_rows + 1), range(1, env.num_columns + 1))
    swaps = [f"[swap {row} {column}]" for row, column in places]
    return swaps if state.get("took_from_discard", False) else [*swaps, "[discard]"]


def othello_moves(env: Any) -> list[str]:
    """Return the legal moves; `[pass]` if there are none, for which the env accepts any text."""
    moves = env.state.game_state["valid_moves"]
    return [f"[{row}, {column}]" for row, column in moves] or ["[pass]"]


def halves(env: Any, seats: int) -> tuple[tuple[int, ...], ...]:
    """Return two teams of equal size: the first half of the seats, and the second."""
    return tuple(range(seats // 2)), tuple(range(seats // 2, seats))


def othello_state(env: Any) -> str:
    """Return the rows of the board, with a dot for an empty cell."""
    return "/".join("".join(cell or "." for cell in row) for row in env.board)


_PRINTED = ("ReverseTicTacToe", "Crusade", "SpiteAndMalice", "Stratego", "FifteenPuzzle", "Chess")
"""Games whose boards list the legal moves."""
GAMES = (
    PIG,
    LIARS,
    TAK,
    THREE_PLAYERS,
    GameInfo(env="BriscolaEnv", name="Briscola", legal_moves=briscola_moves),
    GameInfo(env="GolfEnv", name="Golf", legal_moves=golf_moves),
    GameInfo(env="OthelloEnv", name="Othello", legal_moves=othello_moves, state=othello_state),
    GameInfo(env="TabooEnv", name="Taboo", teams=Teams(halves)),
    *(GameInfo(env=f"{name}Env", name=name, prints_moves=True) for name in _PRINTED),
)
