"""Solvers: growth and evaluation of a small game's tree, which may take minutes."""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from unstable.config import GameConfig
from unstable.solving.tree import MOST_NODES, Tree, grow

T = TypeVar("T")


class Solver(Protocol):
    """Interface that evaluates functions of one game's tree, which the first call grows."""

    async def ask(self, question: Callable[[Tree], T], /) -> T:
        """Return `question(tree)`; raises any error of the question or of growing the tree.

        The question may run in another process, so it is a function of a module or a `partial`.
        """
        ...

    def close(self) -> None:
        """Release the tree."""


class LocalSolver:
    """Solver in this process; it blocks the event loop, so use it only without games in flight."""

    def __init__(self, game: GameConfig, most_nodes: int = MOST_NODES) -> None:
        self._game, self._most_nodes = game, most_nodes
        self._tree: Tree | None = None

    async def ask(self, question: Callable[[Tree], T]) -> T:
        if self._tree is None:
            self._tree = grow(self._game, self._most_nodes)
        return question(self._tree)

    def close(self) -> None:
        """Do nothing: the tree is freed with its owner."""


def answering(game: GameConfig, most_nodes: int) -> Callable[[Callable[[Tree], T], object], T]:
    """Return the request handler of a process that solves a game."""
    solver = LocalSolver(game, most_nodes)
    return lambda question, _: asyncio.run(solver.ask(question))
