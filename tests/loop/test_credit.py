"""The action critic of the whole state learns Kuhn poker."""

from pathlib import Path
from typing import Any

from tests.helpers.loop import KUHN_RUN, make_context
from unstable.loop.train import train
from unstable.records.reading import read_rows
from unstable.runtime.local import LocalActor

RUN: dict[str, Any] = {
    **KUHN_RUN,
    "model": {"name": "tiny_cards", "init": "fresh", "dtype": "float32", "adapter": {"rank": 32}},
    "actors": {"games_in_flight": 128},
    "learner": {
        "algorithm": {"name": "vrpo", "kl_loss": 0.1, "reference": {"ema": 0.9}},
        **{"learning_rate": 2e-3, "batch_size": 384, "steps_per_batch": 2, "epochs": 6},
        "micro_batch_size": 384,
    },
    "eval": {"every": 0, "exploitability": {"every": 6}},
    "loop": {"mode": "sync", "steps": 13},
}


async def test_action_critic_learns_kuhn(tmp_path: Path) -> None:
    context = make_context(Path("tiny_cards"), tmp_path / "run", **RUN)
    await train(context)
    rows = {row["version"]: row for row in read_rows(context.folder.metrics)}
    assert rows[0]["exploit/Kuhn/low"] > 0.4
    assert rows[12]["exploit/Kuhn/high"] < 0.3
    assert rows[13]["learn/explained_variance"] > 0.05

    (actor,) = context.actors
    assert isinstance(actor, LocalActor)
    await actor.close()
