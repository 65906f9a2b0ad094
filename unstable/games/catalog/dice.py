"""PigDice and LiarsDice."""

from typing import Any

from unstable.games.catalog import rules
from unstable.games.info import Compact, GameInfo, always


def pig_moves(env: Any) -> list[str]:
    """The same two at any time."""
    return ["[roll]", "[hold]"]


def pig_position(env: Any) -> str:
    """The seat's own score, the other's, the turn's total, and the score that wins."""
    scores, seat = env.state.game_state["scores"], env.state.current_player_id
    turn_total = env.state.game_state["turn_total"]
    return f"{scores[seat]} {scores[1 - seat]} {turn_total} {env.winning_score}"


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


PIG = GameInfo(
    env="PigDiceEnv",
    name="PigDice",
    legal_moves=pig_moves,
    rules=rules.pig,
    board_shows_all=always,
    compact=Compact(
        "Pig: roll the die as often as you like; 2 to 6 add to your turn's total, a 1 loses it and "
        "ends the turn; hold adds the total to your score and ends the turn. A line is your score, "
        "the other's, your turn's total, and the score that wins. Answer with roll or hold, "
        "nothing else.",
        pig_position,
    ),
)
LIARS = GameInfo(
    env="LiarsDiceEnv", name="LiarsDice", legal_moves=liars_moves, rules=rules.liars_dice
)
