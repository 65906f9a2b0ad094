"""A tree in a process of its own answers as one in this process; what goes wrong is a line."""

import asyncio
import os
import signal
from functools import partial

import pytest

from unstable.config import ConfigError, GameConfig
from unstable.processes.worker import Worker, WorkerError
from unstable.solving.exploiter import bounds, decisions
from unstable.solving.solver import LocalSolver, answering
from unstable.solving.tree import MOST_NODES, Tree

GAME = GameConfig(env="Nim-v0", args={"piles": [1, 2]})


def fail(tree: Tree) -> None:
    raise ConfigError(f"{tree.nodes} positions")


def end(tree: Tree) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def test_solver_process_agrees_without_blocking_loop() -> None:
    """Answers and errors of a question arrive here; a process that ends raises an error."""
    here = LocalSolver(GAME)
    apart = Worker("the process that solves it", partial(answering, GAME, MOST_NODES))
    asked, rounds = asyncio.create_task(apart.ask(decisions)), 0
    while not asked.done():
        await asyncio.sleep(0.001)
        rounds += 1
    assert rounds > 10
    assert await asked == await here.ask(decisions)
    even = {n: [1 / len(each.actions)] * len(each.actions) for n, each in enumerate(await asked)}
    question = partial(bounds, probabilities=even)
    assert await apart.ask(question) == await here.ask(question)
    with pytest.raises(ConfigError, match="positions"):
        await apart.ask(fail)
    with pytest.raises(WorkerError, match="that solves it was killed by SIGKILL .*out of memory"):
        await apart.ask(end)
    apart.close()


async def test_solver_process_rejects_unsolvable_game() -> None:
    with pytest.raises(ConfigError, match="cannot be solved exactly"):
        await LocalSolver(GameConfig(env="ConnectFour-v0")).ask(decisions)
