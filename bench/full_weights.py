"""Time of the same updates with all weights of a tiny model, compared with a LoRA of it.

    OMP_NUM_THREADS=1 python -m bench.full_weights [--updates 4] [--rounds 3] [--past 1.0]

The shipped `tiny` of 0.1 M weights learns TicTacToe by PPO (`bench/ppo_tictactoe.yaml`), against
itself and, by `--past`, equally often against past versions; actor and learner are in this
process, without evaluations. The kinds alternate, round after round; prints medians and the ratio.
Counts only CPU seconds of this process, since the machine may do other work, and excludes the first
update, which warms everything up.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from bench import parser
from unstable.commands.prepare import prepare
from unstable.config import RunConfig, load
from unstable.loop.context import Context
from unstable.loop.train import train
from unstable.records.folder import RunFolder
from unstable.rewards.terms import Rewards
from unstable.runtime.local import LocalActor, LocalLearner
from unstable.tracking.tracker import Tracker
from unstable.types import Update

KINDS: Mapping[str, dict[str, Any]] = {
    "LoRA": {},
    "all weights": {"model.adapter": "none", "learner.learning_rate": 3e-4},
}


class Timed(LocalLearner):
    """A learner that records the CPU time at the end of each update, and its duration."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        super().__init__(config, folder)
        self.learning: list[float] = []
        self.ends: list[float] = []

    async def update(self, batch: Any) -> Update:
        began = time.process_time()
        update = await super().update(batch)
        self.ends.append(time.process_time())
        self.learning.append(self.ends[-1] - began)
        return update


async def seconds(kind: str, arguments: argparse.Namespace, root: Path) -> tuple[float, float]:
    """Return CPU seconds of an update with the play before it, and of the learner's part."""
    changes = {
        "loop.steps": arguments.updates + 1,
        "learner.batch_size": arguments.turns,
        "opponents.draw.past": arguments.past,
        "eval.every": 0,
        "eval.exploitability.every": 0,
        "tracking.run_dir": str(root),
        "tracking.dashboard": "off",
        **KINDS[kind],
    }
    start = str(Path(__file__).with_name("ppo_tictactoe.yaml"))
    config, folder = prepare(load(start, changes)).config, RunFolder(root)
    learner = Timed(config, folder)
    actor = await LocalActor.start(config, folder, root / "engine.log")
    tracker = Tracker(config, folder)
    tracker.print = lambda line: None
    context = Context(
        config=config,
        folder=folder,
        actors=[actor],
        learner=learner,
        tracker=tracker,
        rewards=Rewards(config.buffer.rewards),
    )
    await train(context)
    await actor.close()
    tracker.close()
    whole = (learner.ends[-1] - learner.ends[0]) / arguments.updates
    return whole, statistics.mean(learner.learning[1:])


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    arguments = parser(__doc__, updates=4, turns=2048, rounds=3, past=1.0).parse_args(argv)
    torch.set_num_threads(1)
    taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
    for _ in range(arguments.rounds):
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as scratch:
                taken[kind].append(asyncio.run(seconds(kind, arguments, Path(scratch))))
    medians = {}
    for kind, rows in taken.items():
        whole, learning = (statistics.median(column) for column in zip(*rows, strict=True))
        medians[kind] = whole
        print(
            f"{kind:<12} {whole:6.2f} s per update of {arguments.turns:,} turns, "
            f"{learning:.2f} s of it learning"
        )
    print(f"all weights take {medians['all weights'] / medians['LoRA']:.2f} x a LoRA's time")


if __name__ == "__main__":
    main()
