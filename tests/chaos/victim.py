"""Run in one process to be killed: real loop, games, buffer, learner and files.

Only the engine is scripted: its answers depend only on the seed and take a moment per turn, so that
long games take longer and a game's id determines it, also after a resume.
"""

import asyncio
import contextlib
import json
import os
import random
from pathlib import Path
from typing import Any

import torch

from bench.orchestration import ScriptedEngine
from tests.helpers.loop import make_context
from unstable.commands.resume import find_point, rewind
from unstable.config import ConfigError, RunConfig
from unstable.engines.base import SamplingRequest
from unstable.loop.train import state, train
from unstable.models.base import load_tokenizer
from unstable.records.folder import RunFolder
from unstable.runtime.local import LocalActor
from unstable.types import Completion

STEPS = 60
TURN_S = 0.002


class SeededEngine(ScriptedEngine):
    """Engine that answers with a random cell of the board, sometimes an occupied one."""

    def __init__(self, tokenizer: Any) -> None:
        cells = [tokenizer.encode(f"{cell}<|end|>") for cell in range(9)]
        super().__init__(lambda _, seed: random.Random(seed).choice(cells))

    async def generate(self, request: SamplingRequest) -> Completion:
        await asyncio.sleep(TURN_S)
        return await super().generate(request)


def scripted_actor(
    config: RunConfig, folder: RunFolder, engine: type[SeededEngine] = SeededEngine
) -> LocalActor:
    """Return an actor of this process with a scripted engine that scores nothing."""
    tokenizer = load_tokenizer(config.model)
    scripted: Any = engine(tokenizer)
    return LocalActor(config, folder, scripted, tokenizer)


def settings(mode: str) -> dict[str, Any]:
    """Return settings with groups of two games, so that a kill can split a group."""
    return {
        "model": {"init": "fresh"},
        "opponents": {"draw": {"self": 1, "past": 0, "fixed": 0}, "fixed": []},
        "actors": {"games_in_flight": 16},
        "groups": {"by": "game", "size": 2},
        "learner": {"batch_size": 32, "micro_batch_size": 32, "learning_rate": 1e-3},
        "eval": {"every": 20, "games": 4},
        "loop": {"mode": mode, "steps": STEPS},
    }


async def live(model: Path, run_dir: Path, mode: str) -> None:
    """Begin or resume the run."""
    run, point = RunFolder(run_dir), None
    with contextlib.suppress(ConfigError):
        point = find_point(run, "--resume")
        rewind(run, point, is_synchronous=mode == "sync")
    changes = settings(mode)
    changes["model"] |= {"name": str(model), "dtype": "float32", "adapter": {"rank": 4}}
    if point is None and run.versions():
        run.rewind(-1, {})  # killed before its first version was published
    context = make_context(model, run_dir, num_actors=0, **changes)
    context.actors = [scripted_actor(context.config, context.folder)]
    if point is not None:
        await context.learner.load(point.version)
        await state.restore(context, point.state)
    await train(context)
    drawn = [spec.game_id for spec in context.schedule.ahead(context.current)]
    in_flight = sorted({*context.in_flight, *drawn})
    left = {"dealt": context.schedule.next_game, "in_flight": in_flight}
    left_by(run_dir).write_text(json.dumps(left))


def left_by(run_dir: Path) -> Path:
    """Return the path where a finished run writes its number of games and the ids in flight."""
    return run_dir.parent / f"{run_dir.name}.left.json"


def main(model: Path, run_dir: Path, mode: str) -> None:
    """Begin or resume the run in a child process."""
    torch.set_num_threads(1)
    with (run_dir.parent / f"{run_dir.name}.txt").open("a") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    asyncio.run(live(model, run_dir, mode))
