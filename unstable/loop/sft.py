"""Supervised fine-tuning on a page: epochs of maximum likelihood, each saved and then evaluated.

Like `train.py` it is handed learner, evaluation and tracker as plain callables; the learner is the
one of self-play.
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
"""Plays a saved version's games; what they amount to, by the names of metrics."""
LearnersTurn = Callable[[], AbstractAsyncContextManager[None]]
"""What surrounds the learner's work, where it shares its GPU."""

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
    """Whoever writes rows down and shows them."""

    def print(self, line: str) -> None:
        """Show a line to the person at the terminal."""

    def phase(self, name: str) -> None:
        """Take in what goes on now."""

    def log_step(self, row: Row) -> None:
        """Take in an optimizer step."""

    def log_refusals(self, update: Update) -> None:
        """Take in that a step was not made."""

    def log_epoch(self, row: Row) -> None:
        """Take in an epoch that was evaluated."""


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
    """Train until the epochs are over, the held-out loss has not improved for `patience`, or the
    rows of all epochs are enough.

    Epoch 0 is the start, before any training. To go on with a run, `rows` are those of the epochs
    that were evaluated, and `saved` is the last one with a checkpoint, which the learner stands at.
    Returns the row of the epoch with the lowest held-out loss; the last one's if nothing is held
    out.
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
    """Index of the row with the lowest held-out loss; of the last one without such losses."""
    losses = [row[HELD_OUT_LOSS] for row in rows]
    known = [loss for loss in losses if loss is not None]
    return losses.index(min(known)) if known else len(rows) - 1


def is_over(rows: Sequence[Row], patience: int) -> bool:
    """Return whether the best of the rows has `patience` rows after it."""
    return bool(rows) and len(rows) - 1 - best(rows) >= patience


async def held_out_loss(examples: Sequence[Example], learner: Learner) -> float | None:
    """Mean negative log-likelihood of the answers' tokens, in nats; None of no examples."""
    if not examples:
        return None
    scored = await learner.logprobs([example.tokens for example in examples])
    tokens = [logprob for logprobs in scored for logprob in logprobs]
    return -sum(tokens) / len(tokens)


def _step_row(epoch: int, update: Update) -> Row:
    row: Row = {"version": update.version, "time": time(), EPOCH: epoch}
    return row | {name: update.metrics.get(name) for name in _STEP_METRICS}
