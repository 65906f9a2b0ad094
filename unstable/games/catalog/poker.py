"""What the poker games of ours share: chips, and questions about a line as a seat sees it."""

from collections.abc import Callable
from random import Random
from typing import Any

from unstable.games.chance import Chance


def chips(env: Any) -> list[float]:
    """What each seat has won, or lost, over all rounds."""
    won = env.state.game_state["player_chips"]
    return [float(won[seat]) for seat in range(2)]


def line_of_play(
    env: Any,
    position: Callable[[Any], str],
    legal_moves: Callable[[Any], list[str]],
    most_moves: int,
    rng: Random,
) -> str:
    """How a decision reads that fewer than `most_moves` random moves lead to."""
    with Chance(rng.getrandbits(64)):
        env.reset(num_players=2, seed=0)
        line = position(env)
        for _ in range(rng.randrange(most_moves)):
            over, _ = env.step(rng.choice(legal_moves(env)))
            if over:
                break
            line = position(env)
    return line


def named_move(line: str, rng: Random) -> tuple[str, list[str]]:
    """A line, a mark and a legal move, which is the answer: so that each is said alone too.

    Moves that are only ever right together would become words that a small model cannot part.
    """
    move = rng.choice(line.rpartition(": ")[2].split())
    return f"{line} ! {move}", [move]
