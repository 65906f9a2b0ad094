"""Building blocks of questions about a game's rules: lines from a seat's perspective.

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
    """Return the line of a decision after fewer than `most_moves` random moves in a new env.

    `position` and `legal_moves` are functions of the game's `GameInfo`.
    """
    with Chance(seed := rng.getrandbits(63)):
        env.reset(seats, seed)  # TextArena's envs draw by it
        line = position(env)
        for _ in range(rng.randrange(most_moves)):
            made = env.step(rng.choice(legal_moves(env)))
            if made.over if isinstance(env, Environment) else made[0]:
                break
            line = position(env)
    return line


def named_move(line: str, rng: Random) -> tuple[str, list[str]]:
    """Return a question whose answer is the legal move after a mark, to teach each move alone.

    The legal moves are the words after the line's last colon. A small model cannot separate moves
    that are only ever correct together.
    """
    move = rng.choice(line.rpartition(": ")[2].split())
    return f"{line} ! {move}", [move]
