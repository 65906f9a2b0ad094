"""Learning through the whole loop: after a run the policy is stronger than it was, beyond doubt."""

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
    "actors": {"games_in_flight": 128},
    "learner": {
        "algorithm": {"name": "ppo", "critic": None, "kl_loss": 0.1, "old_logprobs": "engine"},
        **{"learning_rate": 3e-3, "batch_size": 512, "steps_per_batch": 4, "epochs": 3},
        "micro_batch_size": 256,
    },
    "eval": {"every": 8, "games": 200, "opponents": ["random"]},
    "loop": {"mode": "sync", "steps": 8},
    "seed": 1,
}
"""Eight updates of Nim, from a model that takes at random: .46 against random play, .77 after."""


async def test_a_short_run_learns_nim(tmp_path: Path) -> None:
    context = make_context(Path("tiny"), tmp_path / "run", **NIM)
    await train(context)
    rows = read_rows(context.folder.metrics)
    score, low, high = (f"eval/Nim-v0/random/sampled/{name}" for name in ("score", "low", "high"))
    assert rows[0][low] < 0.5 < rows[0][high]  # as random play
    assert rows[-1][low] > rows[0][high] + 0.05
    assert rows[-1][score] > rows[0][score] + 0.2


DISTILL: dict[str, Any] = NIM | {
    "learner": NIM["learner"] | {"algorithm": {"name": "distill"}, "steps_per_batch": 8},
    "eval": {"every": 4, "games": 200, "opponents": ["random"]},
    "loop": {"mode": "sync", "steps": 4},
}
"""Four updates of the expert's exact mix, on the positions that the policy comes to."""


def gained(folder: Any, score: float) -> None:
    """Assert that the score starts at random play's level and rises clearly, above `score`."""
    first, *_, last = read_rows(folder.metrics)
    of = "eval/Nim-v0/random/sampled"
    assert first[f"{of}/low"] < 0.5 < first[f"{of}/high"]
    assert last[f"{of}/low"] > first[f"{of}/high"] + 0.05
    assert last[f"{of}/score"] > score


@pytest.mark.slow
@pytest.mark.one_core
async def test_short_run_distills_the_expert(tmp_path: Path) -> None:
    context = make_context(Path("tiny"), tmp_path / "run", **DISTILL)
    await train(context)
    gained(context.folder, 0.7)
    rows = read_rows(context.folder.metrics)
    kl = [row["learn/loss"] - row["learn/expert_entropy"] for row in rows if "learn/loss" in row]
    assert kl[-1] < 0.5 * kl[0]


@pytest.mark.slow
@pytest.mark.one_core
def test_distilled_policy_teaches_another_run(tmp_path: Path) -> None:
    def run(name: str, **changes: Any) -> Any:
        tracking = {"run_dir": str(tmp_path / name), "dashboard": "off"}
        with locally():
            return unstable.train(unstable.parse(DISTILL | {"tracking": tracking} | changes))

    taught = run("expert", actors={"num": 1, "games_in_flight": 128})
    gained(taught, 0.7)
    algorithm = {"name": "distill", "teacher": {"adapter": str(taught.checkpoint(4))}}
    learned = run(
        "pupil",
        actors={"num": 1, "games_in_flight": 128},
        learner=DISTILL["learner"] | {"algorithm": algorithm},
    )
    gained(learned, 0.6)
    kl = [row["learn/kl_teacher"] for row in read_rows(learned.metrics) if "learn/loss" in row]
    assert kl[-1] < 0.5 * kl[0]
