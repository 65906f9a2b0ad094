"""Packing: samples to one run of tokens without padding, in which a shared prefix stands once.

The samples' inputs form a tree. A segment is a run of tokens that a set of samples has in common; a
token attends to the segments that its samples begin with and, causally, to its own. The prompts of
one game repeat the rules, so most tokens of a micro-batch are shared, and nothing is approximated:
logprobs and gradients are those of the samples one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from unstable.types import TokenSample

MIN_SHARED = 16
"""Fewest common tokens that are worth a segment of their own: each costs an attention call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """What attends to what: S segments of queries, each with the keys before it and its own.

    The last keys of a segment are its own tokens, so that causality is aligned to the end.
    """

    query_lengths: list[int]  # S; sums to T
    key_lengths: list[int]  # S; sums to K
    keys_K: Tensor  # places in T, segment after segment
    query_bounds: Tensor  # S + 1, int32
    key_bounds: Tensor  # S + 1, int32

    def to(self, device: torch.device) -> "Segments":
        """The same on `device`."""
        return Segments(
            query_lengths=self.query_lengths,
            key_lengths=self.key_lengths,
            keys_K=self.keys_K.to(device),
            query_bounds=self.query_bounds.to(device),
            key_bounds=self.key_bounds.to(device),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack:
    """T input tokens, and the N tokens that are scored after them, sample by sample in order."""

    ids_T: Tensor
    positions_T: Tensor  # place in the sample
    segments: Segments
    predictors_N: Tensor  # place in T of the token whose output predicts the sampled one
    targets_N: Tensor  # ids that are scored
    temperatures_N: Tensor  # that their logits are divided by
    samples_N: Tensor  # index of the sample that each belongs to
    states_S: Tensor  # place in T of each sample's last prompt token

    def to(self, device: torch.device) -> "Pack":
        """The same on `device`."""
        return Pack(
            ids_T=self.ids_T.to(device),
            positions_T=self.positions_T.to(device),
            segments=self.segments.to(device),
            predictors_N=self.predictors_N.to(device),
            targets_N=self.targets_N.to(device),
            temperatures_N=self.temperatures_N.to(device),
            samples_N=self.samples_N.to(device),
            states_S=self.states_S.to(device),
        )


def pack_samples(samples: Sequence[TokenSample], *, min_shared: int = MIN_SHARED) -> Pack:
    """The samples as one pack, on the CPU; prefixes of `min_shared` tokens or more stand once."""
    assert all(sample.prompt_ids for sample in samples)
    # The last sampled token predicts nothing that is scored, so it is no input.
    tree = _Tree([[*sample.prompt_ids, *sample.token_ids[:-1]] for sample in samples], min_shared)
    counts = [len(sample.token_ids) for sample in samples]
    ends = [len(sample.prompt_ids) - 1 for sample in samples]  # of the prompts
    predictors = [
        places[end : end + count]
        for places, end, count in zip(tree.places, ends, counts, strict=True)
    ]
    temperatures = torch.tensor([sample.temperature for sample in samples], dtype=torch.float32)
    samples_N = torch.repeat_interleave(torch.tensor(counts))
    return Pack(
        ids_T=torch.tensor(tree.ids),
        positions_T=torch.from_numpy(np.concatenate(tree.positions)),
        segments=tree.segments(),
        predictors_N=torch.from_numpy(np.concatenate(predictors)),
        targets_N=torch.tensor([i for s in samples for i in s.token_ids], dtype=torch.long),
        temperatures_N=temperatures[samples_N],
        samples_N=samples_N,
        states_S=torch.tensor([places[end] for places, end in zip(tree.places, ends, strict=True)]),
    )


class _Tree:
    """Sequences merged where they begin alike, laid out segment after segment."""

    def __init__(self, inputs: list[list[int]], min_shared: int) -> None:
        self.ids: list[int] = []
        self.positions: list[NDArray[np.int64]] = []
        self.keys: list[NDArray[np.int64]] = []
        self.places: list[NDArray[np.int64]] = [np.empty(0, np.int64)] * len(inputs)
        order = sorted(range(len(inputs)), key=inputs.__getitem__)
        pending = [(order, 0, np.empty(0, np.int64))]
        while pending:
            members, depth, context = pending.pop()
            first, last = inputs[members[0]], inputs[members[-1]]
            # Sorted: what the first and the last have in common, all between them have as well.
            shared = common_length(first, last, depth)
            if shared - depth >= min_shared or shared == len(last):
                context = self._add(first[depth:shared], depth, context)
                depth = shared
            for member in members:
                if len(inputs[member]) == depth:
                    self.places[member] = context
            rest = [member for member in members if len(inputs[member]) > depth]
            # A sequence that ends where the others go on sorts first and is a branch of its own.
            branches = groupby(rest, key=lambda member: inputs[member][shared : shared + 1])
            pending += [(list(branch), depth, context) for _, branch in branches]

    def _add(self, ids: list[int], depth: int, context: NDArray[np.int64]) -> NDArray[np.int64]:
        """Append a segment of `ids` that begins at `depth`; returns the places from the root on."""
        own = np.arange(len(self.ids), len(self.ids) + len(ids))
        self.ids += ids
        self.positions.append(np.arange(depth, depth + len(ids)))
        self.keys.append(np.concatenate([context, own]))
        return self.keys[-1]

    def segments(self) -> Segments:
        query_lengths = [len(positions) for positions in self.positions]
        key_lengths = [len(keys) for keys in self.keys]
        return Segments(
            query_lengths=query_lengths,
            key_lengths=key_lengths,
            keys_K=torch.from_numpy(np.concatenate(self.keys)),
            query_bounds=torch.tensor(np.cumsum([0, *query_lengths]), dtype=torch.int32),
            key_bounds=torch.tensor(np.cumsum([0, *key_lengths]), dtype=torch.int32),
        )


def common_length(a: list[int], b: list[int], start: int) -> int:
    """Number of leading ids that `a` and `b` share, given that the first `start` are equal."""
    end = min(len(a), len(b))
    return next((i for i in range(start, end) if a[i] != b[i]), end)
