"""Micro-batches: which samples go through the model together, and on which rank."""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from unstable.config import Aggregation
from unstable.learners.batch import Floats, Ints
from unstable.learners.model.packing import common_length
from unstable.learners.ranks import ALONE, Ranks
from unstable.types import TokenSample

log = logging.getLogger(__name__)
T = TypeVar("T")


class MicroBatch(NamedTuple):
    """Places of samples that go through together; `counts` is false for a repeat of no weight."""

    places: list[int]
    counts: bool


@dataclass(slots=True)
class MicroBatches:
    """How a step is cut up, for the ranks too: `size` samples and `max_tokens` tokens at a time.

    None of it changes the gradient. A sample that is longer than `max_tokens` goes alone. With
    `together` the ranks have collectives in every pass, so that none can repeat one by itself.
    """

    size: int
    max_tokens: int | None = None
    ranks: Ranks = ALONE
    together: bool = False
    halvings: int = 0  # since they were last taken

    def fitting(self, passes: Callable[[], T]) -> T:
        """What `passes` returns; where a GPU's memory runs out, both limits are halved for good.

        `passes` is then called again, and must begin anew. Raises `torch.OutOfMemoryError`, with a
        remedy, where nothing is left to halve.
        """
        while True:
            try:
                return passes()
            except torch.OutOfMemoryError as error:
                reason = str(error).partition("\n")[0]
            # Not in the handler: the error holds the frames of the pass, and so its tensors.
            self._halve(reason)
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _halve(self, reason: str) -> None:
        if self.size == 1 or self.together:
            remedy = (
                "lower learner.micro_batch_size"
                if self.together
                else "set learner.gradient_checkpointing to on, or lower sampling.max_prompt_tokens"
            )
            raise torch.OutOfMemoryError(
                f"the learner's GPU is full with micro-batches of {self.size}; {remedy} ({reason})"
            )
        self.size //= 2
        self.max_tokens = self.max_tokens and max(1, self.max_tokens // 2)
        self.halvings += 1
        log.warning(
            "the GPU is full; micro-batches are of at most %d samples from now on, and the pass is "
            "made again (%s)",
            self.size,
            reason,
        )

    def take_halvings(self) -> int:
        """How often limits were halved since the last call."""
        halvings, self.halvings = self.halvings, 0
        return halvings

    def __call__(
        self, samples: Sequence[TokenSample], units: Sequence[int] | None = None
    ) -> list[MicroBatch]:
        """This rank's micro-batches of the samples, as many as any other rank has.

        Samples that share most of their prompts go together, and those of one unit stay together,
        at the price of a larger micro-batch where a unit alone is too large. A rank with fewer
        micro-batches repeats one without weight while it would have to wait anyway, since the
        collectives of a sharded model need all ranks.
        """
        ordered = _in_prompt_order(samples, range(len(samples)) if units is None else units)
        alone = self.ranks.count == 1
        owners = [0] * len(ordered) if alone else self.ranks.owners(_costs(samples, ordered))
        lengths = [sum(samples[place].length for place in unit) for unit in ordered]
        shares: list[list[list[int]]] = []
        for rank in range(self.ranks.count):
            mine = [index for index, owner in enumerate(owners) if owner == rank]
            units_lengths = [(ordered[index], lengths[index]) for index in mine]
            shares.append(self._filled(units_lengths))
        own = [MicroBatch(places, True) for places in shares[self.ranks.index]]
        lacking = max(map(len, shares)) - len(own)
        shortest = ordered[lengths.index(min(lengths))]
        return own + [MicroBatch(shortest, False)] * lacking

    def _filled(self, units: Sequence[tuple[list[int], int]]) -> list[list[int]]:
        """The units, given with their tokens, in micro-batches, each as full as it may be."""
        limit = math.inf if self.max_tokens is None else self.max_tokens
        batches: list[list[int]] = []
        held = 0
        for unit, tokens in units:
            held += tokens
            if not batches or held > limit or len(batches[-1]) + len(unit) > self.size:
                batches.append([])
                held = tokens
            batches[-1] += unit
        return batches


def _in_prompt_order(samples: Sequence[TokenSample], units: Sequence[int]) -> list[list[int]]:
    """Places of each unit's samples, units in the order of their first prompts."""
    members: dict[int, list[int]] = {}
    for place, unit in enumerate(units):
        members.setdefault(unit, []).append(place)
    return sorted(members.values(), key=lambda unit: samples[unit[0]].prompt_ids)


def _costs(samples: Sequence[TokenSample], ordered: Sequence[list[int]]) -> list[int]:
    """Tokens of each unit that the prompt before it does not share."""
    costs = []
    before: list[int] = []
    for unit in ordered:
        costs.append(0)
        for sample in (samples[place] for place in unit):
            costs[-1] += sample.length - common_length(before, sample.prompt_ids, 0)
            before = sample.prompt_ids
    return costs


def token_normalizers(
    lengths_S: Floats, trajectories_S: Ints, aggregation: Aggregation, max_tokens: int
) -> Floats:
    """What the loss of each token of the samples [S] is divided by, so that the sum is the mean.

    token: the mean over all tokens. turn: the mean of the turns' means. sequence: the mean of the
    trajectories' means. constant: samples x `max_tokens`, which no length can change, as in
    Dr. GRPO, https://arxiv.org/abs/2503.20783.
    """
    count = len(lengths_S)
    if aggregation == "token":
        return np.full(count, lengths_S.sum())
    if aggregation == "turn":
        return count * lengths_S
    if aggregation == "constant":
        return np.full(count, float(count * max_tokens))
    keys, keys_S = np.unique(trajectories_S, return_inverse=True)
    totals_T: Floats = np.bincount(keys_S, weights=lengths_S).astype(np.float64)
    return len(keys) * totals_T[keys_S]
