"""Packing: samples to one run of tokens without padding, that stores a shared prefix once.

The samples' inputs form a tree. A segment is a run of tokens that a set of samples has in common; a
token attends to the segments that its samples begin with and, causally, to its own. The prompts of
one game repeat the rules, so most tokens of a micro-batch are shared, and nothing is approximated:
logprobs and gradients are those of the samples one by one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from itertools import groupby, pairwise
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from unstable.learners.model.token_table import Ints, TokenTable, spans
from unstable.types import TokenSample

MIN_SHARED = 4
"""Minimum number of common tokens for a separate segment."""

KEYS_PER_TOKEN = 64
"""Copied keys that cost as much time as the forward pass of one token."""

COPIES_PER_TOKEN = 16
"""Copied keys and values that take at most the memory of one token's activations."""

_ROWS = 16384
"""Rows of a gradient per chunk in fp32."""


class Shape(NamedTuple):
    """Segments of equal lengths, which are adjacent in a pack and use one attention call."""

    num_segments: int
    num_queries: int  # per segment
    num_keys: int  # per segment

    @property
    def alone(self) -> bool:
        """True if the segments' keys are their own tokens alone."""
        return self.num_queries == self.num_keys

    def mask(self, window: int | None, device: torch.device) -> Tensor:
        """Return the mask, bool [queries, keys]: each query sees itself and the keys before it.

        A window limits the number of keys, the query's own included.
        """
        last = self.num_keys - self.num_queries  # index of the first query's own key
        ones = torch.ones(self.num_queries, self.num_keys, dtype=torch.bool, device=device)
        seen = ones.tril(last)
        return seen if window is None else seen.triu(last - window + 1)

    def sees_all(self, window: int | None) -> bool:
        """Return whether the window covers all keys before each query."""
        return window is None or self.num_keys <= window


@dataclass(frozen=True, kw_only=True)
class Segments:
    """The attention pattern: S segments of queries, each with the keys before it and its own.

    The last keys of a segment are its own tokens, so that causality is aligned to the end. Segments
    of equal shape are adjacent, those without earlier keys first.
    """

    shapes: list[Shape]
    query_lengths: list[int]  # S; sums to T
    key_lengths: list[int]  # S; sums to K
    keys_K: Tensor  # indices in T, segment after segment
    query_bounds: Tensor  # S + 1, int32
    key_bounds: Tensor  # S + 1, int32

    @property
    def shared(self) -> bool:
        """True if a segment attends to another's tokens; else keys are the T tokens in order."""
        return not all(shape.alone for shape in self.shapes)

    @cached_property
    def _masks(self) -> dict[tuple[Shape, int | None], Tensor]:
        return {}

    def mask(self, shape: Shape, window: int | None) -> Tensor:
        """`Shape.mask`, made when a layer first asks: kernels that know bounds never do."""
        key = shape, None if shape.sees_all(window) else window
        if key not in self._masks:
            self._masks[key] = shape.mask(key[1], self.keys_K.device)
        return self._masks[key]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredInputs:
    """S samples as a model's inputs, and the N tokens that are scored after them, in order."""

    predictors_N: Tensor  # index of the input that predicts each target
    targets_N: Tensor  # ids of the scored tokens
    temperatures_N: Tensor  # divisors of their logits
    samples_N: Tensor  # index of each target's sample
    states_S: Tensor  # index of the input that is each sample's last prompt token

    def to(self, device: torch.device) -> Self:
        """Copy it to `device`."""
        moved: Self = _moved(self, device)
        return moved


@dataclass(frozen=True, slots=True, kw_only=True)
class Pack(ScoredInputs):
    """Samples as one run of T input tokens."""

    ids_T: Tensor
    positions_T: Tensor  # index in the sample
    segments: Segments

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of the decoder."""
        return {
            "input_ids": self.ids_T[None],
            "position_ids": self.positions_T[None],
            # Without it transformers derives sequences from the positions, with a GPU sync.
            "attention_mask": torch.ones_like(self.ids_T, dtype=torch.bool)[None],
            "segments": self.segments,
        }


def _moved(value: Any, device: torch.device) -> Any:
    """Copy the tensors of inputs or segments to `device`."""

    def there(each: Any) -> Any:
        if isinstance(each, Tensor):
            return sent(each, device)
        return _moved(each, device) if isinstance(each, Segments) else each

    return replace(value, **{f.name: there(getattr(value, f.name)) for f in fields(value)})


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to `device` without waiting for the copy; a GPU's work is in order."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def pack_samples(
    samples: Sequence[TokenSample] | TokenTable, *, min_shared: int = MIN_SHARED
) -> Pack:
    """Pack the samples on the CPU; a shared prefix is stored once.

    A segment has at least `min_shared` tokens in common, and more if it is far from the beginning.
    Samples with equal inputs always share them.
    """
    table = samples if isinstance(samples, TokenTable) else TokenTable.of(samples)
    tree = _PrefixTree(table, min_shared)
    return Pack(
        ids_T=torch.from_numpy(tree.ids_T),
        positions_T=torch.from_numpy(tree.positions_T),
        segments=tree.segments(),
        **scored_inputs(table, tree.starts_S, tree.keys_K),
    )


def scored_inputs(table: TokenTable, starts_S: Ints, places: Ints | None = None) -> dict[str, Any]:
    """Return the fields of `ScoredInputs` for samples whose inputs start at these offsets.

    `places` maps offsets to inputs; None: the offsets are indices of inputs.
    """
    scored_N = spans(table.firsts_S, table.scored_S)
    samples_N = np.repeat(np.arange(len(table)), table.scored_S)
    predictors_N = starts_S[samples_N] + table.offsets[scored_N]
    states_S = starts_S + table.prompts_S - 1
    if places is not None:
        predictors_N, states_S = places[predictors_N], places[states_S]
    return {
        "predictors_N": torch.from_numpy(predictors_N),
        "targets_N": torch.from_numpy(table.targets[scored_N]),
        "temperatures_N": torch.from_numpy(table.temperatures_S[samples_N]),
        "samples_N": torch.from_numpy(samples_N),
        "states_S": torch.from_numpy(states_S),
    }


class _PrefixTree:
    """Sequences with merged prefixes, laid out segment after segment."""

    def __init__(self, table: TokenTable, min_shared: int) -> None:
        order = np.argsort(table.places_S, kind="stable")
        lengths, starts = table.inputs_S[order], table.starts_S[order]
        common = table.shared(order)[1:]
        # Equal sequences are stored once, as the first of them, the leader.
        leads = np.append(True, (common != lengths[1:]) | (lengths[:-1] != lengths[1:]))
        leaders = np.flatnonzero(leads)
        shared = common[leaders[1:] - 1]
        branches = _Branches(lengths[leaders].tolist(), shared.tolist(), min_shared)
        first, begins, ends, parents, levels = np.array(branches.rows).T
        laid = np.lexsort((ends, ends - begins, begins > 0))
        self._begins, self._ends = begins[laid], ends[laid]
        place_of = np.argsort(laid)  # inverse permutation: place of each segment
        rows = spans(starts[leaders][first[laid]] + self._begins, self.queries)
        self.ids_T = table.ids[rows]
        self.positions_T = spans(self._begins, self.queries)
        self.keys_K = self._keys(place_of[parents[laid]], levels[laid])
        # Offset of each sequence in the keys, from its last segment.
        begin_of = (np.cumsum(self._ends) - self._ends)[place_of[branches.last]]
        self.starts_S = np.empty(len(table), np.int64)
        self.starts_S[order] = begin_of[np.cumsum(leads) - 1]

    @property
    def queries(self) -> Ints:
        """Tokens of each segment."""
        return self._ends - self._begins

    def _keys(self, parents: Ints, levels: Ints) -> Ints:
        """Places that each segment attends to: its parent's keys, which lie a level up, its own."""
        starts = np.cumsum(self._ends) - self._ends
        keys_K = np.empty(self._ends.sum(), np.int64)
        keys_K[spans(starts + self._begins, self.queries)] = np.arange(len(self.ids_T))
        for level in range(1, levels.max() + 1):
            mine = np.flatnonzero(levels == level)
            before = self._begins[mine]
            keys_K[spans(starts[mine], before)] = keys_K[spans(starts[parents[mine]], before)]
        return keys_K

    def segments(self) -> Segments:
        query_lengths, key_lengths = self.queries.tolist(), self._ends.tolist()
        shapes = [
            Shape(len(list(same)), queries, keys)
            for (queries, keys), same in groupby(zip(query_lengths, key_lengths, strict=True))
        ]
        return Segments(
            shapes=shapes,
            query_lengths=query_lengths,
            key_lengths=key_lengths,
            keys_K=torch.from_numpy(self.keys_K),
            query_bounds=torch.tensor(np.cumsum([0, *query_lengths]), dtype=torch.int32),
            key_bounds=torch.tensor(np.cumsum([0, *key_lengths]), dtype=torch.int32),
        )


class _Branches:
    """The cut of sorted, distinct sequences into segments, parents before their children.

    A row is a segment: its first sequence, start and end in that sequence, its parent's row (its
    own for a root) and its depth. `last` is the row that each sequence ends with.
    """

    def __init__(self, lengths: list[int], common: list[int], min_shared: int) -> None:
        self.rows: list[tuple[int, int, int, int, int]] = []
        self.last = [0] * len(lengths)
        pending = [(0, len(lengths), 0, 0, 0)]
        while pending:
            low, high, depth, parent, level = pending.pop()
            fewest = depth + min_shared + depth // KEYS_PER_TOKEN
            cuts = [index for index in range(low + 1, high) if common[index - 1] < fewest]
            for first, stop in pairwise([low, *cuts, high]):
                # In sorted order, all sequences between two share the prefix of these two.
                end = min(common[first : stop - 1], default=lengths[first])
                row = len(self.rows)
                ends_here = end == lengths[first]
                if ends_here:
                    self.last[first] = row
                rest = first + ends_here
                if rest < stop:
                    pending.append((rest, stop, end, row, level + 1))
                self.rows.append((first, depth, end, parent if level else row, level))


def held_tokens(lengths: Ints, shared: Ints) -> Ints:
    """Tokens that samples add to a pack, given how many they share with a sample in it.

    An upper bound, including the memory of copied keys.
    """
    merged = np.maximum(0, shared + 1 - MIN_SHARED - shared // KEYS_PER_TOKEN)
    return lengths - merged + -(-shared // COPIES_PER_TOKEN)


def gathered(rows: Tensor, indices_N: Tensor) -> Tensor:
    """`rows` [T, ...] at these indices [N, ...]; a row's gradients are summed in fp32.

    On a GPU, sums in a lower precision would be rounded at each addend, of which a shared prefix
    has many.
    """
    if rows.dtype is torch.float32:
        # Not `[...]`, whose gradient sums rows in a nondeterministic order.
        return rows.index_select(0, indices_N)
    found: Tensor = _Gathered.apply(rows, indices_N)
    return found


class _Gathered(Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, indices_N: Tensor) -> Tensor:
        ctx.save_for_backward(indices_N)
        ctx.shape = rows.shape
        return rows.index_select(0, indices_N)

    @staticmethod
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor, None]:
        (indices_N,) = ctx.saved_tensors
        sums = torch.zeros(ctx.shape, dtype=torch.float32, device=grad_N.device)
        for indices, part in zip(indices_N.split(_ROWS), grad_N.split(_ROWS), strict=True):
            sums.index_add_(0, indices, part.float())
        return sums.to(grad_N.dtype), None
