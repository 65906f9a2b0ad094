"""The pieces of `unstable sft`: the order of examples, the loss, when it ends, what is shown."""

import io
import re
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.builders import game
from tests.test_loop import lines
from unstable.config import parse
from unstable.league.evaluation import evaluation_scores
from unstable.records.folder import RunFolder
from unstable.datasets.examples import Example
from unstable.runtime.fine_tuning import HELD_OUT_LOSS, Course, best, held_out_loss, is_over
from unstable.tracking.metrics import evaluation_metrics
from unstable.tracking.sft import SFTTracker
from unstable.types import Sample


def test_it_ends_when_the_held_out_loss_no_longer_falls() -> None:
    losses = [3.0, 2.0, 1.0, 1.5, 1.2]
    rows: list[dict[str, float | None]] = [{HELD_OUT_LOSS: loss} for loss in losses]
    assert [is_over(rows[:n], patience=2) for n in range(6)] == [False] * 5 + [True]
    assert best(rows) == 2
    silent: list[dict[str, float | None]] = [{HELD_OUT_LOSS: None}] * 4
    assert not is_over(silent, patience=1) and best(silent) == 3


@settings(deadline=None, derandomize=True, max_examples=30)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 5))
def test_every_epoch_has_every_example_once_in_an_order_of_its_own(number, batch_size, seed):
    examples = [
        Example(env="", seat=0, prompt="", prompt_ids=[1, i], answer="", token_ids=[i])
        for i in range(number)
    ]
    course = Course(
        train=examples, held_out=[], epochs=2, patience=1, batch_size=batch_size, seed=seed
    )
    orders = []
    version = 0
    for epoch in (1, 2):
        order = []
        for batch in course.batches(epoch):
            assert batch.version == version
            version += 1
            order += [sample.game_id for sample in batch.samples]
            assert 0 < len(batch.samples) <= batch_size
        assert version == course.version(epoch)
        assert sorted(order) == list(range(number))
        orders.append(order)
    assert number < 5 or orders[0] != orders[1]


def test_a_terminal_gets_a_bar_besides_the_results(tmp_path: Path) -> None:
    config = parse({"sft": {"epochs": 2}})
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    tracker = SFTTracker(config, RunFolder(tmp_path), steps=4, console=console)
    tracker.log_step({"version": 3, "sft/epoch": 1, "learn/loss": 0.25})
    score = evaluation_scores(4, [game(("policy@4", "random"), env="Nim-v0", purpose="eval")])
    row = {"version": 4, "sft/epoch": 1, HELD_OUT_LOSS: 0.5}
    tracker.log_epoch(row | evaluation_metrics(score, prefix="greedy"))
    tracker.close()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", console.file.getvalue())
    assert "epoch 1 · loss 0.25" in shown and "3/4" in shown
    assert "epoch 1/2 · held-out loss 0.5" in shown
    assert "greedy, Nim-v0 against random: score 1.00" in shown and "1 won" in shown
    assert [row["version"] for row in lines(RunFolder(tmp_path).metrics)] == [3, 4]


async def test_the_held_out_loss_is_the_mean_over_tokens() -> None:
    class Scorer:
        async def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]:
            return [[-1.0] * len(sample.token_ids) for sample in samples[:1]] + [[-4.0]]

    examples = [
        Example(env="", seat=None, prompt="", prompt_ids=[1], answer="", token_ids=ids)
        for ids in ([1, 2], [3])
    ]
    assert await held_out_loss(examples, Scorer()) == 2.0
    assert await held_out_loss([], Scorer()) is None
