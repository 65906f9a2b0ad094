"""The examples of a supervised run, in the order in which they are trained on."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from random import Random

from unstable.datasets.examples import Example
from unstable.types import TokenSample
from unstable.types.seeds import derive_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuning:
    """What is trained on, in which order, and for how long."""

    train: Sequence[Example]
    held_out: Sequence[Example]
    epochs: int
    patience: int  # epochs without a lower held-out loss before it stops
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Optimizer steps."""
        return ceil(len(self.train) / self.batch_size)

    def version(self, epoch: int) -> int:
        """The version that an epoch ends with: the optimizer steps until then."""
        return epoch * self.steps_per_epoch

    def epoch(self, version: int) -> int:
        """The epoch that a version ends; the inverse of `version`."""
        return version // self.steps_per_epoch

    def batches(self, epoch: int) -> list[list[TokenSample]]:
        """The epoch's batches, in an order of its own; the last one may be smaller."""
        order = list(range(len(self.train)))
        Random(derive_seed(self.seed, "sft order", epoch)).shuffle(order)
        parts = (order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size))
        return [[self.train[place].tokens for place in part] for part in parts]
