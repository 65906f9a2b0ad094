"""PigDice and LiarsDice."""

from typing import Any

from unstable.games.info import GameInfo


def pig_moves(env: Any) -> list[str]:
    """The same two at any time."""
    return ["[roll]", "[hold]"]


def liars_moves(env: Any) -> list[str]:
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


PIG = GameInfo(env="PigDiceEnv", name="PigDice", legal_moves=pig_moves)
LIARS = GameInfo(env="LiarsDiceEnv", name="LiarsDice", legal_moves=liars_moves)
