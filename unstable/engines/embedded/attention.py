"""Attention over slots: one packed forward serves prompts and single tokens of many requests.

It is registered with transformers as an attention implementation, the public hook that every model
with the functional attention interface calls. A forward packs all its tokens into one row, [1, T];
a `ForwardPlan` gives the slot and position of each.

Shapes: T tokens, S slots, B segments that attend together, C tokens of the longest of them, K
key-value heads, G queries per such head, H = K G, D head size, M positions that a slot has room
for.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from unstable.engines.embedded.slots import Copy, Ints

ATTENTION = "unstable_slots"
_BLOCK = 128  # queries of one prompt that attend at a time; bounds the memory of the scores
_SHORT = 32  # segments of fewer tokens attend together, padded to at most twice their length
_GATHERED = 16_384  # positions of segments that attend together; bounds the memory of their copies
_SPARSE = 4  # slots per single token from which the slots are gathered
_ROOM = 128  # positions by which the cache grows


class _AttentionRule(NamedTuple):
    """A layer's parameters for turning query-key products into attention weights."""

    scaling: float
    window: int | None  # number of last positions that a token sees, itself included; None: all
    cap: float | None  # scores are cap * tanh(score / cap)
    sinks: Tensor | None  # [K, G], scores of a key without a value


class _Seen:
    """Visible positions below `length`: a token at position p sees positions up to p."""

    def __init__(self, positions: Tensor, first: int, length: int) -> None:
        self.length = length
        self._positions = positions  # token positions, [..., 1]
        self._first = first  # lowest position
        self._views: dict[int | None, tuple[int, Tensor]] = {}  # by window

    def through(self, window: int | None) -> tuple[int, Tensor]:
        """Return the first position that any token sees, and the additive bias [..., M] from it on.

        The bias is 0, or minus infinity where a key is hidden; equal windows share it.
        """
        if window not in self._views:
            first = 0 if window is None else max(0, self._first + 1 - window)
            places = torch.arange(first, self.length)
            hidden = places > self._positions
            if window is not None:
                hidden |= places <= self._positions - window
            bias = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
            self._views[window] = first, bias
        return self._views[window]


class _Block:
    """Positions [start, stop) of a slot, whose tokens are packed from `offset` on."""

    def __init__(self, slot: int, start: int, stop: int, offset: int) -> None:
        self.slot, self.start, self.stop, self.offset = slot, start, stop, offset
        self.seen = _Seen(torch.arange(start, stop)[:, None], start, stop)

    def attend(
        self, queries: Tensor, keys: Tensor, values: Tensor, rule: _AttentionRule, future: Tensor
    ) -> Tensor:
        """Compute causal attention of the block's tokens [C, K, G, D]; `future` is the mask."""
        count, _, groups, _ = queries.shape
        first, bias = (0, None) if rule.window is None else self.seen.through(rule.window)
        rows = queries.permute(1, 2, 0, 3).flatten(1, 2)  # [K, G C, D]
        scores = (rows @ keys[self.slot, :, :, first : self.stop]).float()
        scores = _scaled(scores, rule).unflatten(1, (groups, count))
        if bias is None:
            scores[..., -count:].add_(future[:count, :count])
        else:
            scores.add_(bias)
        weights = _weights(scores, rule, 2).to(queries.dtype).flatten(1, 2)
        mixed = weights @ values[self.slot, :, first : self.stop]
        return mixed.unflatten(1, (groups, count)).permute(2, 0, 1, 3)


class _Singles:
    """Segments of one token that attend together over the range of slots that they span."""

    def __init__(self, slots_B: Ints, positions_B: Ints, offsets_B: Ints) -> None:
        slots, positions = torch.from_numpy(slots_B), torch.from_numpy(positions_B)
        self.first, last = int(slots.min()), int(slots.max())
        self.offsets = torch.from_numpy(offsets_B)
        self.rows = slots - self.first  # row of each single token in the range
        # Slots of the range without a token repeat the first token; their results are dropped.
        size = last + 1 - self.first
        self.sources = self.offsets[:1].expand(size).index_put((self.rows,), self.offsets)
        limits = positions[:1].expand(size).index_put((self.rows,), positions)
        lowest, highest = int(positions_B.min()), int(positions_B.max())
        self.seen = _Seen(limits[:, None, None, None], lowest, highest + 1)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, rule: _AttentionRule) -> Tensor:
        """Return mixed values of its tokens among [T, K, G, D], by products over the range."""
        slots = slice(self.first, self.first + len(self.sources))
        first, bias = self.seen.through(rule.window)
        places = slice(first, self.seen.length)
        scores = (queries[self.sources] @ keys[slots, :, :, places]).float()  # [S, K, G, M]
        weights = _weights(_scaled(scores, rule).add_(bias), rule, 1).to(queries.dtype)
        return (weights @ values[slots, :, places])[self.rows]


class _Short:
    """Segments of similar length that attend together, each padded with its own last token."""

    def __init__(self, slots_B: Ints, starts_B: Ints, sizes_B: Ints, offsets_B: Ints) -> None:
        places_C = np.arange(sizes_B.max())
        places_BC = np.minimum(places_C, sizes_B[:, None] - 1)
        real_BC = places_C < sizes_B[:, None]
        self.slots = torch.from_numpy(slots_B)
        self.sources = torch.from_numpy(offsets_B[:, None] + places_BC)  # [B, C]
        self.real = torch.from_numpy(np.flatnonzero(real_BC))
        self.offsets = self.sources.flatten()[self.real]
        positions = torch.from_numpy(starts_B[:, None] + places_BC)
        lowest, length = int(starts_B.min()), int((starts_B + sizes_B).max())
        self.seen = _Seen(positions[:, None, None, :, None], lowest, length)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, rule: _AttentionRule) -> Tensor:
        """Return mixed values of its tokens among [T, K, G, D], in the order of `offsets`."""
        rows = queries[self.sources].permute(0, 2, 3, 1, 4)  # [B, K, G, C, D]
        size = rows.shape[2:4]
        first, bias = self.seen.through(rule.window)
        places = slice(first, self.seen.length)
        scores = (rows.flatten(2, 3) @ keys[self.slots, :, :, places]).float()
        scores = _scaled(scores, rule).unflatten(2, size).add_(bias)
        weights = _weights(scores, rule, 2).to(queries.dtype).flatten(2, 3)
        mixed = (weights @ values[self.slots, :, places]).unflatten(2, size)
        return mixed.permute(0, 3, 1, 2, 4).flatten(0, 1)[self.real]


class ForwardPlan:
    """The plan of one forward: the place of each packed token, and the positions it attends to.

    Segment r of R covers positions [starts_R, stops_R) of slot slots_R.
    """

    def __init__(
        self,
        slots_R: Ints,
        starts_R: Ints,
        stops_R: Ints,
        before: Sequence[Copy] = (),
        after: Sequence[Copy] = (),
    ) -> None:
        self.before, self.after = [*_together(before)], [*_together(after)]
        self.length = int(stops_R.max())
        sizes_R = stops_R - starts_R
        offsets_R = sizes_R.cumsum() - sizes_R
        self.last = torch.from_numpy(offsets_R + sizes_R - 1)  # packed index of each last token
        places_T = np.arange(sizes_R.sum()) - offsets_R.repeat(sizes_R)
        self.slots_T = torch.from_numpy(slots_R.repeat(sizes_R))
        self.positions_T = torch.from_numpy(starts_R.repeat(sizes_R) + places_T)
        self.blocks: list[_Block] = []
        for row in np.flatnonzero(sizes_R >= _SHORT).tolist():
            slot, start, stop = int(slots_R[row]), int(starts_R[row]), int(stops_R[row])
            for first in range(start, stop, _BLOCK):
                place = int(offsets_R[row]) + first - start
                self.blocks.append(_Block(slot, first, min(first + _BLOCK, stop), place))
        self.batches: list[_Singles | _Short] = []
        shorter = 1
        while shorter < _SHORT:  # 1 token, 2 to 3, 4 to 7 and so on
            rows = np.flatnonzero((sizes_R >= shorter) & (sizes_R < 2 * shorter))
            self.batches += _batches(slots_R[rows], starts_R[rows], sizes_R[rows], offsets_R[rows])
            shorter *= 2


class SlotCache:
    """Keys and values of every layer and slot; capacity grows with the longest slot so far.

    `windows` maps a layer to the number of last positions that a token sees, its own included;
    layers without an entry see all positions.
    """

    def __init__(
        self, num_slots: int, max_length: int, windows: Mapping[int, int] | None = None
    ) -> None:
        self.max_length = max_length
        self._windows = {
            layer: window for layer, window in (windows or {}).items() if window < max_length
        }
        self._num_slots = num_slots
        self._room = 0
        # Of layers that have attended so far. Keys are [S, K, D, M], values [S, K, M, D]: products
        # over the first M need no copy.
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._future = torch.full((_BLOCK, _BLOCK), -torch.inf).triu_(1)

    def reserve(self, length: int) -> None:
        """Make room for `length` positions in every slot."""
        if length > self._room:
            self._room = min(-(-length // _ROOM) * _ROOM, self.max_length)
            for layer, (keys, values) in self.layers.items():
                known = keys.shape[-1]
                longer = self._allocate(layer, keys[0, ..., 0][None], values[0, :, 0][None])
                longer[0][..., :known], longer[1][:, :, :known] = keys, values

    def attend(
        self,
        layer: int,
        step: ForwardPlan,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """Store the step's keys and values [1, K, T, D]; attend [1, H, T, D] -> [1, T, H, D]."""
        new_keys, new_values = key[0].transpose(0, 1), value[0].transpose(0, 1)  # [T, K, D]
        keys, values = self.layers.get(layer) or self._allocate(layer, new_keys, new_values)
        _copy(keys, values, step.before)
        keys[step.slots_T, :, :, step.positions_T] = new_keys
        values[step.slots_T, :, step.positions_T] = new_values
        _copy(keys, values, step.after)
        queries = query[0].transpose(0, 1).unflatten(1, (keys.shape[1], -1))  # [T, K, G, D]
        if sinks is not None:
            sinks = sinks.float().unflatten(0, queries.shape[1:3])
        rule = _AttentionRule(scaling, self._windows.get(layer), cap, sinks)
        mixed = queries.new_empty((*queries.shape[:3], values.shape[-1]))
        for block in step.blocks:
            rows = slice(block.offset, block.offset + block.stop - block.start)
            mixed[rows] = block.attend(queries[rows], keys, values, rule, self._future)
        for batch in step.batches:
            mixed[batch.offsets] = batch.attend(queries, keys, values, rule)
        return mixed.flatten(1, 2)[None]

    def _allocate(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Allocate zeroed storage for keys and values with the shapes of these, [T, K, D]."""
        (_, heads, key_size), value_size = keys.shape, values.shape[-1]
        shape = self._num_slots, heads
        if keys.dtype == torch.bfloat16:  # each dtype is up to four times as fast in its layout
            room = keys.new_zeros((*shape, key_size, self._room))
        else:
            room = keys.new_zeros((*shape, self._room, key_size)).transpose(2, 3)
        self.layers[layer] = room, values.new_zeros((*shape, self._room, value_size))
        return self.layers[layer]


def _together(copies: Sequence[Copy]) -> Iterator[tuple[Tensor, Tensor, int, int]]:
    """Group copies into batches with the effect of running them one after another.

    Copies of equal positions share a batch where possible. Each copy runs in a round after those
    that write its source or read its target.
    """
    rounds: list[dict[tuple[int, int], list[Copy]]] = []
    written: dict[int, int] = {}  # slot: first round that may read it
    read: dict[int, int] = {}  # slot: first round that may write it
    for copy in copies:
        place = max(written.get(copy.source, 0), read.get(copy.target, 0))
        written[copy.target] = place + 1
        read[copy.source] = max(read.get(copy.source, 0), place + 1)
        while place >= len(rounds):
            rounds.append({})
        rounds[place].setdefault((copy.start, copy.stop), []).append(copy)
    for spans in rounds:
        for (start, stop), group in spans.items():
            sources, targets = ([copy[i] for copy in group] for i in range(2))
            # Slots to copy from and to, and the positions [start, stop) that are copied.
            yield torch.tensor(sources), torch.tensor(targets), start, stop


def _copy(keys: Tensor, values: Tensor, copies: Sequence[tuple[Tensor, Tensor, int, int]]) -> None:
    lying_keys = keys if keys.stride(-1) == 1 else keys.transpose(2, 3)  # in memory order
    place = 3 if lying_keys is keys else 2
    for sources, targets, start, stop in copies:
        for held, axis in ((lying_keys, place), (values, 2)):
            span = held.narrow(axis, start, stop - start)
            span.index_copy_(0, targets, span.index_select(0, sources))


def _batches(
    slots_R: Ints, starts_R: Ints, sizes_R: Ints, offsets_R: Ints
) -> Iterator[_Singles | _Short]:
    """Yield segments that attend together; single tokens in nearby slots need no copy of them."""
    if len(slots_R) == 0:
        return
    if sizes_R.max() == 1 and np.ptp(slots_R) < _SPARSE * len(slots_R):
        yield _Singles(slots_R, starts_R, offsets_R)
        return
    order = (starts_R + sizes_R).argsort(kind="stable")
    length = int((starts_R + sizes_R).max())
    count = max(1, _GATHERED // length)
    for first in range(0, len(order), count):
        rows = order[first : first + count]
        yield _Short(slots_R[rows], starts_R[rows], sizes_R[rows], offsets_R[rows])


def _scaled(scores: Tensor, rule: _AttentionRule) -> Tensor:
    """Scale and cap fp32 scores in place, before masking."""
    scores.mul_(rule.scaling)
    return scores if rule.cap is None else scores.div_(rule.cap).tanh_().mul_(rule.cap)


def _weights(scores: Tensor, rule: _AttentionRule, axes: int) -> Tensor:
    """Return the softmax over the last of the axes [..., K, G, (C,) M], `axes` of them after G.

    A sink takes a share of the attention weight (https://arxiv.org/abs/2309.17453).
    """
    if rule.sinks is None:
        return scores.softmax(-1)
    sinks = rule.sinks[(..., *[None] * axes)].expand(*scores.shape[:-1], 1)
    return torch.cat((scores, sinks), -1).softmax(-1)[..., :-1]


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    slot_step: ForwardPlan,
    slot_cache: SlotCache,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend with the signature that transformers expects; the step is among the model's kwargs.

    Windows come from the cache, because not every model with windows passes them here.
    """
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    mixed = slot_cache.attend(layer, slot_step, query, key, value, scale, softcap, s_aux)
    return mixed, None


AttentionInterface.register(ATTENTION, _attention)
