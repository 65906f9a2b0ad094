"""Supervised training on a page: epochs of likelihood, each saved and then judged.

Like `loop.py` it is handed the rooms as plain callables: the learner is the one of self-play, with
RFT for its algorithm, and what it trains on are samples that an expert might have been sampled for.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from random import Random
from time import time
from typing import Any, Protocol

from unstable.seeds import derive_seed
from unstable.sft.data import Example
from unstable.types import Adapter, Batch, Reward, Sample, Update

Row = dict[str, float | None]
Judge = Callable[[int], Awaitable[Mapping[str, float | None]]]
"""Has a saved version play its games; what they amount to, by the names of metrics."""

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


class Learner(Protocol):
    """The owner of weights and optimizer."""

    async def update(self, batch: Batch) -> Update: ...

    async def logprobs(self, samples: Sequence[Sample]) -> list[list[float]]: ...

    async def save(self, version: int, run_state: dict[str, Any]) -> Adapter: ...


class Tracker(Protocol):
    """Whoever writes rows down and shows them."""

    def phase(self, name: str) -> None: ...

    def log_step(self, row: Row) -> None: ...

    def log_epoch(self, row: Row) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What is taught, in which order, and for how long."""

    train: Sequence[Example]
    held_out: Sequence[Example]
    epochs: int
    patience: int  # epochs without a lower held-out loss before it stops
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        return ceil(len(self.train) / self.batch_size)

    def version(self, epoch: int) -> int:
        """The version that an epoch ends with: the optimizer steps until then."""
        return epoch * self.steps_per_epoch

    def batches(self, epoch: int) -> list[Batch]:
        """The epoch's batches, in an order of its own; the last one may be smaller."""
        order = list(range(len(self.train)))
        Random(derive_seed(self.seed, "sft order", epoch)).shuffle(order)
        parts = (order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size))
        return [
            Batch(version=version, samples=tuple(as_sample(self.train[i], i) for i in part))
            for version, part in enumerate(parts, start=self.version(epoch - 1))
        ]


def as_sample(example: Example, index: int) -> Sample:
    """The example as a won turn of a game of its own."""
    return Sample(
        game_id=index,
        env=example.env,
        seat=example.seat or 0,
        turn=0,
        group_id=index,
        version=0,
        prompt_ids=example.prompt_ids,
        token_ids=example.token_ids,
        logprobs=[0.0] * len(example.token_ids),
        temperature=1.0,
        finish_reason="stop",
        prompt_cut=0,
        rewards={"outcome": Reward(1.0, 1.0)},
        outcome=1.0,
        forfeit=False,
    )


async def teach(
    course: Course,
    learner: Learner,
    judge: Judge,
    tracker: Tracker,
    *,
    rows: Sequence[Row] = (),
    saved: int = -1,
) -> Row:
    """Teach until the epochs are over, or the held-out loss has not improved for `patience`.

    Epoch 0 is the start, before any training. To go on with a run, `rows` are those of the epochs
    that were judged, and `saved` is the last one with a checkpoint, which the learner stands at.
    Returns the row of the epoch with the lowest held-out loss; the last one's if nothing is held
    out.
    """
    judged = list(rows)
    while len(judged) <= course.epochs and not is_over(judged, course.patience):
        epoch = len(judged)
        version = course.version(epoch)
        if epoch > saved:
            for batch in course.batches(epoch) if epoch else []:
                update = await learner.update(batch)
                tracker.log_step(_step_row(epoch, update))
            tracker.phase("saving")
            await learner.save(version, {EPOCH: epoch})
        tracker.phase("held-out loss")
        loss = await held_out_loss(course.held_out, learner)
        tracker.phase("playing")
        scores = await judge(version)
        row: Row = {"version": version, "time": time(), EPOCH: epoch, HELD_OUT_LOSS: loss}
        judged.append(row | dict(scores))
        tracker.log_epoch(judged[-1])
    return judged[best(judged)]


def best(rows: Sequence[Row]) -> int:
    """Index of the row with the lowest held-out loss; of the last one without such losses."""
    losses = [row[HELD_OUT_LOSS] for row in rows]
    known = [loss for loss in losses if loss is not None]
    return losses.index(min(known)) if known else len(rows) - 1


def is_over(rows: Sequence[Row], patience: int) -> bool:
    """Whether the best of the rows has `patience` rows after it."""
    return bool(rows) and len(rows) - 1 - best(rows) >= patience


async def held_out_loss(examples: Sequence[Example], learner: Learner) -> float | None:
    """Mean negative log-likelihood of the answers' tokens, in nats; None of no examples."""
    if not examples:
        return None
    scored = await learner.logprobs([as_sample(each, i) for i, each in enumerate(examples)])
    tokens = [logprob for logprobs in scored for logprob in logprobs]
    return -sum(tokens) / len(tokens)


def _step_row(epoch: int, update: Update) -> Row:
    row: Row = {"version": update.version, "time": time(), EPOCH: epoch}
    return row | {name: update.metrics.get(name) for name in _STEP_METRICS}
