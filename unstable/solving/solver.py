"""A small game's tree, grown and asked in a process of its own: either takes up to minutes."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from unstable.config import GameConfig
from unstable.processes.worker import Beat, Worker
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


def process_solver(game: GameConfig, most_nodes: int = MOST_NODES) -> Solver:
    """Return a solver in a process of its own, beside games in flight.

    It raises `WorkerError` where the process has ended, as for want of memory.
    """
    return Worker(
        f"games = {game.key}: the process that solves it", partial(_answering, game, most_nodes)
    )


def _answering(game: GameConfig, most_nodes: int) -> Callable[[Callable[[Tree], T], Beat], T]:
    """Return the function of the process: it answers a question."""
    solver = LocalSolver(game, most_nodes)
    return lambda question, _: asyncio.run(solver.ask(question))
