"""What the poker games of ours share: chips."""

from typing import Any


def chips(env: Any) -> list[float]:
    """What each seat has won, or lost, over all rounds."""
    won = env.state.game_state["player_chips"]
    return [float(won[seat]) for seat in range(2)]
