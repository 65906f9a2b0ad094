"""Supervised fine-tuning on a page: epochs of maximum likelihood, each saved and then evaluated.

As in `train.py`, learner, evaluation and tracker are passed in; self-play uses the same learner.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from time import time
from typing import Protocol

from unstable.datasets.examples import Example, FineTuning
from unstable.loop.protocols import Learner
from unstable.tracking.metrics import Row
from unstable.types import Update

Evaluate = Callable[[int], Awaitable[Mapping[str, float | None]]]
"""Plays a saved version's games and returns the results by metric name."""
LearnersTurn = Callable[[], AbstractAsyncContextManager[None]]
"""Context of the learner's work, in which engines leave a shared GPU to it."""

EPOCH = "sft/epoch"
HELD_OUT_LOSS = "sft/held_out_loss"
_STEP_METRICS = (
    "learn/loss",
    "learn/grad_norm",
    "learn/learning_rate",
    "learn/entropy",
    "learn/tokens_trained",
    "learn/tokens_per_second",
    "learn/skipped_steps",
)


class RowTracker(Protocol):
    """The part of a tracker that records and shows the rows of fine-tuning."""

    def print(self, line: str) -> None:
        """Show a line to the user at the terminal."""

    def phase(self, name: str) -> None:
        """Record the current phase."""

    def log_step(self, row: Row) -> None:
        """Record an optimizer step."""

    def log_refusals(self, update: Update) -> None:
        """Record steps that were refused."""

    def log_epoch(self, row: Row) -> None:
        """Record an epoch that was evaluated."""


async def fine_tune(
    task: FineTuning,
    learner: Learner,
    evaluate: Evaluate,
    tracker: RowTracker,
    learners_turn: LearnersTurn,
    *,
    rows: Sequence[Row] = (),
    saved: int = -1,
    is_enough: Callable[[Sequence[Row]], bool] = lambda rows: False,
) -> Row:
    """Train until the last epoch, `patience` epochs without a better held-out loss, or `is_enough`.

    Epoch 0 is the start, before any training. To resume a run, pass the `rows` of its evaluated
    epochs, and as `saved` the last epoch with a checkpoint, which the learner must have loaded.
    Returns the row of the epoch with the lowest held-out loss, or of the last epoch if nothing is
    held out.
    """
    evaluated = list(rows)
    while len(evaluated) <= task.epochs and not is_over(evaluated, task.patience):
        if evaluated and is_enough(evaluated):
            break
        epoch = len(evaluated)
        version = task.version(epoch)
        async with learners_turn():
            if epoch > saved:
                for batch in task.batches(epoch) if epoch else []:
                    update = await learner.imitate(batch)
                    tracker.log_step(_step_row(epoch, update))
                    if update.refusals:
                        tracker.log_refusals(update)
                tracker.phase("saving")
                await (await learner.hold()).save()
            tracker.phase("held-out loss")
            loss = await held_out_loss(task.held_out, learner)
        tracker.phase("playing")
        scores = await evaluate(version)
        row: Row = {"version": version, "time": time(), EPOCH: epoch, HELD_OUT_LOSS: loss}
        evaluated.append(row | dict(scores))
        tracker.log_epoch(evaluated[-1])
    return evaluated[best(evaluated)]


def best(rows: Sequence[Row]) -> int:
    """Return the index of the row with the lowest held-out loss, or of the last if none has one."""
    losses = [row[HELD_OUT_LOSS] for row in rows]
    known = [loss for loss in losses if loss is not None]
    return losses.index(min(known)) if known else len(rows) - 1


def is_over(rows: Sequence[Row], patience: int) -> bool:
    """Return whether the best of the rows has at least `patience` rows after it."""
    return bool(rows) and len(rows) - 1 - best(rows) >= patience


async def held_out_loss(examples: Sequence[Example], learner: Learner) -> float | None:
    """Return the mean negative log-likelihood per answer token, in nats; None without examples."""
    if not examples:
        return None
    scored = await learner.logprobs([example.tokens for example in examples])
    tokens = [logprob for logprobs in scored for logprob in logprobs]
    return -sum(tokens) / len(tokens)


def _step_row(epoch: int, update: Update) -> Row:
    row: Row = {"version": update.version, "time": time(), EPOCH: epoch}
    return row | {name: update.metrics.get(name) for name in _STEP_METRICS}
