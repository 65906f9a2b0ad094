"""Preference learning through the whole loop: pairs of branches, and then a stronger policy.

Nim by the shipped tiny model. Quick: two updates in this process. Slow: a run of real processes.
"""

from pathlib import Path
from typing import Any

import pytest

import unstable
from tests.helpers.locally import locally
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
        "algorithm": {"name": "dpo", "beta": 0.5, "kl_loss": 0.1},
        **{"learning_rate": 2e-3, "batch_size": 1024, "steps_per_batch": 8},
        "micro_batch_size": 256,
    },
    "eval": {"every": 18, "games": 200, "opponents": ["random"]},
    "loop": {"mode": "sync", "steps": 18},
    "seed": 1,
}
OF = "eval/Nim-v0/random/sampled"


async def test_dpo_margin_grows_during_a_run(tmp_path: Path) -> None:
    short = {
        "learner": {**NIM["learner"], "batch_size": 256, "steps_per_batch": 1},
        "eval": {"every": 0, "games": 1},
        "loop": {"mode": "sync", "steps": 2},
    }
    context = make_context(Path("tiny"), tmp_path / "run", **{**NIM, **short})
    await train(context)
    first, second = (row for row in read_rows(context.folder.metrics) if "learn/pairs" in row)
    assert min(row["learn/pairs"] for row in (first, second)) > 20
    assert first["learn/pair_margin"] == 0  # no preference yet
    assert second["learn/pair_margin"] > 0


@pytest.mark.slow
def test_dpo_run_learns_from_branches(tmp_path: Path) -> None:
    tracking = {"run_dir": str(tmp_path / "run"), "dashboard": "off"}
    actors = {"num": 1, **NIM["actors"]}
    with locally():
        folder = unstable.train(unstable.parse({**NIM, "actors": actors, "tracking": tracking}))
    before, *_, after = read_rows(folder.metrics)
    assert before[f"{OF}/low"] < 0.5 < before[f"{OF}/high"]  # as random play
    assert after[f"{OF}/low"] > before[f"{OF}/high"]
    assert folder.checkpoint(NIM["loop"]["steps"]).is_dir()
