"""Trees of games of chance: draws are scripted, so that every deal occurs."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import textarena


class Node(NamedTuple):
    """Draws and moves so far and the env after them; `asked` has each draw's number of outcomes."""

    draws: tuple[int, ...]
    moves: tuple[str, ...]
    asked: tuple[int, ...]
    env: Any


class _OutOfDraws(Exception):
    """Raised for a draw beyond the script."""


@contextmanager
def scripted(draws: tuple[int, ...]) -> Iterator[list[int]]:
    """Script the integers that `random` draws; yields the bounds of the draws."""
    asked: list[int] = []

    def draw(below: int) -> int:
        asked.append(below)
        if len(asked) > len(draws):
            raise _OutOfDraws
        return draws[len(asked) - 1]

    shared: Any = random._inst
    shared._randbelow = draw
    try:
        yield asked
    finally:
        del shared._randbelow


def nodes(
    make: Callable[[], textarena.Env], legal_moves: Callable[[Any], list[str]]
) -> Iterator[Node]:
    """Return all positions of a two-player game, over all draws and moves."""
    left: list[tuple[tuple[int, ...], tuple[str, ...]]] = [((), ())]
    while left:
        draws, moves = left.pop()
        env = make()
        with scripted(draws) as asked:
            try:
                env.reset(num_players=2)
                for move in moves:
                    env.step(move)
            except _OutOfDraws:
                left += [((*draws, number), moves) for number in range(asked[-1])]
                continue
        yield Node(draws, moves, tuple(asked), env)
        if not env.state.done:
            left += [(draws, (*moves, move)) for move in legal_moves(env)]
