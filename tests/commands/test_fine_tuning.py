"""The pieces of `unstable sft`: the order of examples, the loss, when it ends, what is shown."""

import contextlib
import io
import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.helpers.builders import game
from tests.helpers.learners import token_sample
from tests.helpers.loop import lines
from unstable.config import parse
from unstable.datasets.examples import Example
from unstable.league.evaluation import evaluation_scores
from unstable.loop.protocols import HeldVersion
from unstable.loop.sft import (
    EPOCH,
    HELD_OUT_LOSS,
    FineTuning,
    best,
    fine_tune,
    held_out_loss,
    is_over,
)
from unstable.records.folder import RunFolder
from unstable.tracking.metrics import Row, evaluation_metrics
from unstable.tracking.sft import SFTTracker
from unstable.types import TokenSample, Update


def example(prompt_ids: list[int], token_ids: list[int]) -> Example:
    tokens = token_sample(prompt_ids, token_ids)
    return Example(env="", seat=None, prompt="", answer="", tokens=tokens)


def test_training_ends_when_held_out_loss_stops_falling() -> None:
    losses = [3.0, 2.0, 1.0, 1.5, 1.2]
    rows: list[dict[str, float | None]] = [{HELD_OUT_LOSS: loss} for loss in losses]
    assert [is_over(rows[:n], patience=2) for n in range(6)] == [False] * 5 + [True]
    assert best(rows) == 2
    silent: list[dict[str, float | None]] = [{HELD_OUT_LOSS: None}] * 4
    assert not is_over(silent, patience=1) and best(silent) == 3


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 5))
def test_each_epoch_has_every_example_once_in_a_new_order(number, batch_size, seed):
    examples = [example([1, i], [i]) for i in range(number)]
    task = FineTuning(
        train=examples, held_out=[], epochs=2, patience=1, batch_size=batch_size, seed=seed
    )
    orders = []
    version = 0
    for epoch in (1, 2):
        order: list[int] = []
        for batch in task.batches(epoch):
            version += 1
            order += [place for sample in batch for place in sample.token_ids]
            assert all(sample == examples[sample.token_ids[0]].tokens for sample in batch)
            assert 0 < len(batch) <= batch_size
        assert version == task.version(epoch)
        assert sorted(order) == list(range(number))
        orders.append(order)
    assert number < 5 or orders[0] != orders[1]


def test_terminal_shows_a_progress_bar_and_results(tmp_path: Path) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120)
    tracker = SFTTracker(parse({}), RunFolder(tmp_path), epochs=2, steps=4, console=console)
    tracker.log_step({"version": 3, "sft/epoch": 1, "learn/loss": 0.25})
    score = evaluation_scores(4, [game(("main@4", "random"), env="Nim-v0", purpose="eval")])
    row: Row = {"version": 4, "sft/epoch": 1, HELD_OUT_LOSS: 0.5}
    tracker.log_epoch(row | evaluation_metrics(score))
    tracker.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
    assert "epoch 1 · loss 0.25" in shown and "3/4" in shown
    assert "epoch 1/2 · held-out loss 0.5" in shown
    assert "sampled, Nim-v0 against random: score 1.00" in shown and "1 won" in shown
    assert [row["version"] for row in lines(RunFolder(tmp_path).metrics)] == [3, 4]


class Recording:
    """Learner, tracker and evaluation that only record the order of their calls."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.steps = 0

    async def imitate(self, samples: Sequence[TokenSample]) -> Update:
        self.events.append("step")
        self.steps += 1
        return Update(version=self.steps, metrics={}, advantages=[])

    async def logprobs(self, samples: Sequence[TokenSample]) -> list[list[float]]:
        self.events.append("score")
        return [[-float(len(sample.prompt_ids))] * len(sample.token_ids) for sample in samples]

    async def hold(self) -> HeldVersion:
        self.held, this = self.steps, cast(Any, self)
        return HeldVersion(self.steps, this)

    async def save(self, version: int) -> None:
        assert version == self.held
        self.events.append(f"save {version}")

    async def evaluate(self, version: int) -> dict[str, float | None]:
        self.events.append(f"play {version}")
        return {"greedy/score": 0.5}

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        self.events.append("{")
        yield
        self.events.append("}")

    def phase(self, name: str) -> None:
        pass

    def log_step(self, row: Row) -> None:
        self.events.append(f"row of step {row['version']}")

    def log_epoch(self, row: Row) -> None:
        self.events.append(f"row of epoch {row[EPOCH]}")

    async def run(self, task: FineTuning, **before: Any) -> Row:
        this = cast(Any, self)  # only the methods above are called
        return await fine_tune(task, this, self.evaluate, this, self.turn, **before)


async def test_learner_and_evaluation_alternate_each_epoch() -> None:
    examples = [example([1], [i]) for i in range(3)]
    task = FineTuning(train=examples, held_out=examples, epochs=1, patience=1, batch_size=2, seed=0)
    whole = Recording()
    row = await whole.run(task)
    steps = ["step", "row of step 1", "step", "row of step 2"]
    first = ["{", "save 0", "score", "}", "play 0", "row of epoch 0"]
    second = ["save 2", "score", "}", "play 2", "row of epoch 1"]
    assert whole.events == [*first, "{", *steps, *second]
    assert (row[EPOCH], row[HELD_OUT_LOSS], row["greedy/score"]) == (0, 1.0, 0.5)
    saved = Recording()  # resumes before the last checkpoint is evaluated
    await saved.run(task, rows=[row], saved=1)
    assert saved.events == ["{", "score", "}", "play 2", "row of epoch 1"]
    assert (await Recording().run(task, rows=[row, row], saved=1)) is row


async def test_held_out_loss_is_the_mean_over_tokens() -> None:
    examples = [example([1], [1, 2]), example([1] * 4, [3])]
    learner: Any = Recording()
    assert await held_out_loss(examples, learner) == 2.0
    assert await held_out_loss([], learner) is None
