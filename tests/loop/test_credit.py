"""The action critic of the whole state learns Kuhn poker."""

from pathlib import Path

from tests.helpers.loop import make_context
from unstable.config import load
from unstable.loop.train import train
from unstable.records.reading import read_rows
from unstable.runtime.local import LocalActor

OPTIONS = {"learner.batch_size": 384, "eval.exploitability.every": 6, "loop.steps": 13}


async def test_action_critic_learns_kuhn(tmp_path: Path) -> None:
    config = load("tiny_kuhn", OPTIONS).model_dump(exclude_unset=True)
    context = make_context(Path("tiny_cards"), tmp_path / "run", **config)
    await train(context)
    rows = {row["version"]: row for row in read_rows(context.folder.metrics)}
    assert rows[0]["exploit/Kuhn/low"] > 0.4
    assert rows[12]["exploit/Kuhn/high"] < 0.3
    assert rows[13]["learn/explained_variance"] > 0.05

    (actor,) = context.actors
    assert isinstance(actor, LocalActor)
    await actor.close()
