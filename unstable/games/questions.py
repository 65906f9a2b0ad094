"""What questions about a game's rules are made of: lines as a seat sees them.

A line is a compact position that ends with its legal moves: K 1/3 +0 check: check bet.
"""

from collections.abc import Callable
from random import Random
from typing import Any

from unstable.games.chance import Chance
from unstable.games.environment import Environment


def line_of_play(
    env: Any,
    position: Callable[[Any], str],
    legal_moves: Callable[[Any], list[str]],
    most_moves: int,
    rng: Random,
    *,
    seats: int = 2,
) -> str:
    """How a decision reads that fewer than `most_moves` random moves lead to, in an env not begun.

    `position` and `legal_moves` are those of the game's `GameInfo`.
    """
    with Chance(rng.getrandbits(64)):
        env.reset(seats, 0)
        line = position(env)
        for _ in range(rng.randrange(most_moves)):
            made = env.step(rng.choice(legal_moves(env)))
            if made.over if isinstance(env, Environment) else made[0]:
                break
            line = position(env)
    return line


def named_move(line: str, rng: Random) -> tuple[str, list[str]]:
    """A line, a mark and a legal move, which is the answer: so that each is also learned alone.

    The legal moves are the words after the line's last colon. Moves that are only ever right
    together would become words that a small model cannot part.
    """
    move = rng.choice(line.rpartition(": ")[2].split())
    return f"{line} ! {move}", [move]
