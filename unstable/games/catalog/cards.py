"""Card games of TextArena of which no more is known than their legal moves."""

from itertools import product
from typing import Any

from unstable.games.info import GameInfo


def briscola_moves(env: Any) -> list[str]:
    """Any card in the hand, by its place."""
    hand = env.state.game_state["players"][env.state.current_player_id]["hand"]
    return [f"[play {place}]" for place in range(1, len(hand) + 1)]


def golf_moves(env: Any) -> list[str]:
    """A card is drawn or taken; then it is put in a place or, unless it was taken, discarded."""
    state = env.state.game_state
    if state["turn_phase"] == "draw":
        return ["[draw]", "[take]"] if state["discard_pile"] else ["[draw]"]
    places = product(range(1, env.num_rows + 1), range(1, env.num_columns + 1))
    swaps = [f"[swap {row} {column}]" for row, column in places]
    return swaps if state.get("took_from_discard", False) else [*swaps, "[discard]"]


GAMES = (
    GameInfo(env="BriscolaEnv", name="Briscola", legal_moves=briscola_moves),
    GameInfo(env="GolfEnv", name="Golf", legal_moves=golf_moves),
)
