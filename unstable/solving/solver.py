"""A small game's tree, grown and asked, here or in a process of its own: it takes up to minutes."""

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from unstable.config import GameConfig
from unstable.solving.tree import MOST_NODES, Tree, grow

T = TypeVar("T")


class Solver(Protocol):
    """Answers questions about one game's tree, which is grown at the first."""

    async def ask(self, question: Callable[[Tree], T], /) -> T:
        """Return the question's answer; raises what it, or growing, raises.

        The question and its answer go between processes: a function of a module, or a `partial`.
        """
        ...

    def close(self) -> None:
        """Give the tree up."""


class LocalSolver:
    """A solver in this process, whose event loop waits meanwhile: where no games are in flight."""

    def __init__(self, game: GameConfig, most_nodes: int = MOST_NODES) -> None:
        self._game, self._most_nodes = game, most_nodes
        self._tree: Tree | None = None

    async def ask(self, question: Callable[[Tree], T]) -> T:
        """The answer."""
        if self._tree is None:
            self._tree = grow(self._game, self._most_nodes)
        return question(self._tree)

    def close(self) -> None:
        """The tree goes with its owner."""


def answering(game: GameConfig, most_nodes: int) -> Callable[[Callable[[Tree], T], object], T]:
    """Return what a process that solves a game does: it answers questions."""
    solver = LocalSolver(game, most_nodes)
    return lambda question, _: asyncio.run(solver.ask(question))
