"""Mini-batches: which samples go through the model together, and on which rank."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from unstable.learners.packing import common_length
from unstable.learners.ranks import ALONE, Ranks
from unstable.types import Sample


class MiniBatch(NamedTuple):
    """Places of samples that go through together; `counts` is false for a repeat of no weight."""

    places: list[int]
    counts: bool


@dataclass(frozen=True, slots=True)
class MiniBatches:
    """How a step is cut up, for the ranks too: `size` samples and `max_tokens` tokens at a time.

    None of it changes the gradient. A sample that is longer than `max_tokens` goes alone.
    """

    size: int
    max_tokens: int | None = None
    ranks: Ranks = ALONE

    def __call__(
        self, samples: Sequence[Sample], units: Sequence[int] | None = None
    ) -> list[MiniBatch]:
        """This rank's mini-batches of the samples, as many as any other rank has.

        Samples that share most of their prompts go together, and those of one unit stay together,
        at the price of a larger mini-batch where a unit alone is too large. A rank with fewer
        mini-batches repeats one without weight while it would have to wait anyway, since the
        collectives of a sharded model need all ranks.
        """
        ordered = _in_prompt_order(samples, range(len(samples)) if units is None else units)
        alone = self.ranks.count == 1
        owners = [0] * len(ordered) if alone else self.ranks.owners(_costs(samples, ordered))
        shares: list[list[list[int]]] = [[] for _ in range(self.ranks.count)]
        for rank, share in enumerate(shares):
            mine = [unit for unit, owner in zip(ordered, owners, strict=True) if owner == rank]
            share += self._filled(samples, mine)
        own = [MiniBatch(places, True) for places in shares[self.ranks.index]]
        lacking = max(map(len, shares)) - len(own)
        shortest = min(ordered, key=lambda unit: sum(_length(samples[i]) for i in unit))
        return own + [MiniBatch(shortest, False)] * lacking

    def _filled(self, samples: Sequence[Sample], units: Sequence[list[int]]) -> list[list[int]]:
        """The units in mini-batches, each as full as it may be."""
        limit = math.inf if self.max_tokens is None else self.max_tokens
        batches: list[list[int]] = []
        held = 0
        for unit in units:
            tokens = sum(_length(samples[place]) for place in unit)
            held += tokens
            if not batches or held > limit or len(batches[-1]) + len(unit) > self.size:
                batches.append([])
                held = tokens
            batches[-1] += unit
        return batches


def _in_prompt_order(samples: Sequence[Sample], units: Sequence[int]) -> list[list[int]]:
    """Places of each unit's samples, units in the order of their first prompts."""
    members: dict[int, list[int]] = {}
    for place, unit in enumerate(units):
        members.setdefault(unit, []).append(place)
    return sorted(members.values(), key=lambda unit: samples[unit[0]].prompt_ids)


def _costs(samples: Sequence[Sample], ordered: Sequence[list[int]]) -> list[int]:
    """Tokens of each unit that the prompt before it does not share."""
    costs = []
    before: list[int] = []
    for unit in ordered:
        costs.append(0)
        for sample in (samples[place] for place in unit):
            costs[-1] += _length(sample) - common_length(before, sample.prompt_ids, 0)
            before = sample.prompt_ids
    return costs


def _length(sample: Sample) -> int:
    return len(sample.prompt_ids) + len(sample.token_ids)


class TokenColumns(dict[str, Tensor]):
    """Figures of all tokens [N] of the samples by name, of which each rank fills in its own."""

    def __init__(self, samples: Sequence[Sample], device: torch.device) -> None:
        super().__init__()
        self.lengths = [len(sample.token_ids) for sample in samples]
        self.starts = np.cumsum([0, *self.lengths])
        self.device = device

    def put(self, mini_batch: MiniBatch, figures: Mapping[str, Tensor]) -> None:
        """Set the figures of a mini-batch's tokens, sample by sample."""
        spans = [np.arange(self.starts[i], self.starts[i + 1]) for i in mini_batch.places]
        places_N = torch.from_numpy(np.concatenate(spans)).to(self.device)
        for name, values_N in figures.items():
            if name not in self:
                self[name] = torch.zeros(int(self.starts[-1]), device=self.device)
            if mini_batch.counts:
                self[name][places_N] = values_N.detach().float()
