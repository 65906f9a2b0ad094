"""A small game's tree, grown and asked in a process of its own: either takes up to minutes.

    python -m unstable.solving.solver DESCRIPTOR

is that process: over the socket it gets the game, then questions, and answers them. It ends with
its asker.
"""

import asyncio
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import Protocol, TypeVar

from unstable.collectors.isolation import HelperProcess, frame, read_frame
from unstable.config import GameConfig
from unstable.config.plugins import faults_to
from unstable.solving.tree import MOST_NODES, Tree, grow

T = TypeVar("T")
_MODULE = "unstable.solving.solver"


class Solver(Protocol):
    """Answers questions about one game's tree, which is grown at the first."""

    async def ask(self, question: Callable[[Tree], T]) -> T:
        """What the question makes of the tree; raises what it, or growing, raises.

        The question and its answer go between processes: a function of a module, or a `partial`.
        """
        ...

    def close(self) -> None:
        """Give the tree up."""


class LocalSolver:
    """In this process, whose event loop waits meanwhile: where no games are in flight."""

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


class ProcessSolver:
    """In a process of its own, beside games in flight."""

    def __init__(self, game: GameConfig, most_nodes: int = MOST_NODES) -> None:
        self._game, self._most_nodes = game, most_nodes
        self._turn = asyncio.Lock()  # one question at a time
        self._process = HelperProcess(_MODULE)

    async def ask(self, question: Callable[[Tree], T]) -> T:
        """The answer; raises `RuntimeError` where the process has ended, as for want of memory."""
        async with self._turn:
            try:
                if not self._process.is_running:
                    await self._process.start((self._game, self._most_nodes))
                self._process.send(question)
                answer, error = await self._process.receive()
            except asyncio.CancelledError:
                self.close()  # its answer would be taken for the next one's
                raise
            except (asyncio.IncompleteReadError, ConnectionError):
                self.close()
                raise RuntimeError(
                    f"games = {self._game.key}: the process that solves it has ended, most likely "
                    "for want of memory"
                ) from None
        if error is not None:
            raise error
        result: T = answer
        return result

    def close(self) -> None:
        """End the process."""
        self._process.end()


def main(descriptor: int) -> None:
    """Answer until nobody can ask any more."""
    connection = socket.socket(fileno=descriptor)
    threading.Thread(target=end_with_asker, args=(descriptor,), daemon=True).start()
    stream = connection.makefile("rwb")
    solver = LocalSolver(*read_frame(stream.read))
    while True:
        question = read_frame(stream.read)
        answer, failures = None, list[BaseException]()
        with faults_to(failures.append):  # which are the asker's
            answer = asyncio.run(solver.ask(question))
        stream.write(frame((answer, failures[0] if failures else None)))
        stream.flush()


def end_with_asker(descriptor: int) -> None:
    """Also in the midst of a long question."""
    look = select.poll()
    look.register(descriptor, select.POLLRDHUP)
    look.poll()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
