"""Preference learning through the whole loop: branches of one position, and the policy is stronger.

Quick: Nim by the shipped tiny model, in this process. Slow: the same with real processes.
"""

from pathlib import Path
from typing import Any

import pytest

import unstable
from tests.helpers.loop import make_context
from unstable.loop.train import train
from unstable.records.reading import read_rows

NIM: dict[str, Any] = {
    "model": {"name": "tiny", "init": "fresh", "dtype": "float32", "adapter": {"rank": 32}},
    "games": [{"env": "Nim-v0", "args": {"piles": [1, 2, 2]}}],
    "opponents": {"draw": {"self": 1, "past": 0, "fixed": 0}, "fixed": []},
    "groups": {"by": "branch", "size": 4},
    "actors": {"games_in_flight": 128},
    "learner": {
        "algorithm": {"name": "dpo", "beta": 0.2},
        "learning_rate": 3e-3,
        "batch_size": 512,
        "steps_per_batch": 4,
        "micro_batch_size": 256,
    },
    "eval": {"every": 6, "games": 200, "opponents": ["random"]},
    "loop": {"mode": "sync", "steps": 6},
    "seed": 1,
}
OF = "eval/Nim-v0/random/sampled"


def check(rows: list[dict[str, Any]], gain: float) -> None:
    """The score against random play rose, beyond both intervals, by pairs alone."""
    first, last = rows[0], rows[-1]
    assert first[f"{OF}/low"] < 0.5 < first[f"{OF}/high"]  # as random play
    assert last[f"{OF}/low"] > first[f"{OF}/high"]
    assert last[f"{OF}/score"] > first[f"{OF}/score"] + gain
    learned = [row for row in rows if "learn/pairs" in row]
    assert min(row["learn/pairs"] for row in learned) > 0
    assert learned[-1]["learn/pair_accuracy"] > 0.5 > learned[0]["learn/pair_accuracy"]
    assert learned[-1]["learn/pair_margin"] > learned[0]["learn/pair_margin"]


async def test_a_few_updates_on_branches_learn_nim(tmp_path: Path) -> None:
    context = make_context(Path("tiny"), tmp_path / "run", **NIM)
    await train(context)
    check(read_rows(context.folder.metrics), gain=0.15)


@pytest.mark.slow
def test_a_run_of_real_processes_learns_from_branches(tmp_path: Path) -> None:
    tracking = {"run_dir": str(tmp_path / "run"), "dashboard": "off"}
    actors = {"num": 1, **NIM["actors"]}
    folder = unstable.train(unstable.parse({**NIM, "actors": actors, "tracking": tracking}))
    check(read_rows(folder.metrics), gain=0.1)
    assert folder.checkpoint(NIM["loop"]["steps"]).is_dir()
