"""Attention over slots: one packed forward serves prompts and single tokens of many requests.

It is registered with transformers as an attention implementation, the public hook that every model
with the functional attention interface calls. All tokens of a forward lie in one row, [1, T]; a
`Step` says which slot and position each of them is.

Shapes: T tokens, S slots, K key-value heads, G queries per such head, H = K G, D head size, M
positions that a slot has room for.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from unstable.engines.embedded.slots import Copy

ATTENTION = "unstable_slots"
_BLOCK = 128  # queries of one prompt that attend at a time; bounds the memory of the scores
_ROOM = 128  # positions by which the cache grows


class Segment(NamedTuple):
    """Positions [start, stop) of a slot, which a forward computes."""

    slot: int
    start: int
    stop: int


class _Block(NamedTuple):
    """A part of a segment whose tokens are packed from `offset` on."""

    slot: int
    start: int
    stop: int
    offset: int


class _Singles:
    """Segments of one token, attended to together over the range of slots that they span."""

    def __init__(self, blocks: Sequence[_Block]) -> None:
        slots = torch.tensor([block.slot for block in blocks])
        positions = torch.tensor([block.start for block in blocks])
        self.first, last = int(slots.min()), int(slots.max())
        self.offsets = torch.tensor([block.offset for block in blocks])
        self.rows = slots - self.first  # of each single in the range
        self.length = int(positions.max()) + 1
        # A slot of the range without a token repeats one: its answer is dropped.
        size = last + 1 - self.first
        self.sources = self.offsets[:1].expand(size).index_put((self.rows,), self.offsets)
        limits = torch.zeros(size, dtype=torch.long).index_put((self.rows,), positions)
        hidden = torch.arange(self.length) > limits[:, None]
        self.bias = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)[:, None, None]


class Step:
    """The plan of one forward: where each packed token belongs and what it attends to."""

    def __init__(
        self, segments: Sequence[Segment], before: Sequence[Copy] = (), after: Sequence[Copy] = ()
    ) -> None:
        self.before, self.after = before, after
        self.length = max(segment.stop for segment in segments)
        sizes = torch.tensor([segment.stop - segment.start for segment in segments])
        ends = sizes.cumsum(0)
        self.last = ends - 1  # the packed index of each segment's last token
        self.slots_T = torch.tensor([segment.slot for segment in segments]).repeat_interleave(sizes)
        self.positions_T = torch.cat([torch.arange(s.start, s.stop) for s in segments])
        self.blocks: list[_Block] = []
        singles: list[_Block] = []
        for (slot, start, stop), offset in zip(segments, (ends - sizes).tolist(), strict=True):
            if stop - start == 1:
                singles.append(_Block(slot, start, stop, offset))
                continue
            for first in range(start, stop, _BLOCK):
                last = min(first + _BLOCK, stop)
                self.blocks.append(_Block(slot, first, last, offset + first - start))
        self.singles = _Singles(singles) if singles else None


class SlotCache:
    """Keys and values of every layer and slot. Room grows with the longest slot that was needed."""

    def __init__(self, num_slots: int, max_length: int) -> None:
        self.max_length = max_length
        self._num_slots = num_slots
        self._room = 0
        # Keys lie transposed, [S, K, D, M], values as [S, K, M, D]: the layouts from which batched
        # products over the first positions need no copy.
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._future = torch.full((_BLOCK, _BLOCK), -torch.inf).triu_(1)

    @property
    def num_layers(self) -> int:
        """Layers that have attended so far."""
        return len(self._layers)

    def reserve(self, length: int) -> None:
        """Make room for that many positions in every slot."""
        if length > self._room:
            self._room = min(-(-length // _ROOM) * _ROOM, self.max_length)
            for layer, (keys, values) in self._layers.items():
                more = self._room - keys.shape[-1]
                self._layers[layer] = (
                    nn.functional.pad(keys, (0, more)),
                    nn.functional.pad(values, (0, 0, 0, more)),
                )

    def attend(
        self, layer: int, step: Step, query: Tensor, key: Tensor, value: Tensor, scaling: float
    ) -> Tensor:
        """Store the step's keys and values [1, K, T, D]; attend [1, H, T, D] -> [1, T, H, D]."""
        new_keys, new_values = key[0].transpose(0, 1), value[0].transpose(0, 1)  # [T, K, D]
        keys, values = self._layers.get(layer) or self._allocate(layer, new_keys, new_values)
        for source, target, start, stop in step.before:
            keys[target, :, :, start:stop] = keys[source, :, :, start:stop]
            values[target, :, start:stop] = values[source, :, start:stop]
        keys[step.slots_T, :, :, step.positions_T] = new_keys
        values[step.slots_T, :, step.positions_T] = new_values
        for source, target, start, stop in step.after:
            keys[target, :, :, start:stop] = keys[source, :, :, start:stop]
            values[target, :, start:stop] = values[source, :, start:stop]
        queries = query[0].transpose(0, 1).unflatten(1, (keys.shape[1], -1))  # [T, K, G, D]
        mixed = queries.new_empty((*queries.shape[:3], values.shape[-1]))
        for block in step.blocks:
            rows = slice(block.offset, block.offset + block.stop - block.start)
            mixed[rows] = self._attend_block(block, queries[rows], keys, values, scaling)
        if step.singles:
            mixed[step.singles.offsets] = _attend_singles(
                step.singles, queries, keys, values, scaling
            )
        return mixed.flatten(1, 2)[None]

    def _attend_block(
        self, block: _Block, queries: Tensor, keys: Tensor, values: Tensor, scaling: float
    ) -> Tensor:
        """Causal attention of consecutive tokens [C, K, G, D] of a slot up to each of them."""
        count, heads, groups, _ = queries.shape
        rows = queries.permute(1, 2, 0, 3).flatten(1, 2)  # [K, G C, D]
        scores = (rows @ keys[block.slot, :, :, : block.stop]).float().mul_(scaling)
        scores.unflatten(1, (groups, count))[..., -count:].add_(self._future[:count, :count])
        weights = scores.softmax(-1).to(queries.dtype)
        mixed = weights @ values[block.slot, :, : block.stop]
        return mixed.unflatten(1, (groups, count)).permute(2, 0, 1, 3)

    def _allocate(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        (_, heads, key_size), value_size = keys.shape, values.shape[-1]
        shape = self._num_slots, heads
        self._layers[layer] = (
            keys.new_zeros((*shape, key_size, self._room)),
            values.new_zeros((*shape, self._room, value_size)),
        )
        return self._layers[layer]


def _attend_singles(
    singles: _Singles, queries: Tensor, keys: Tensor, values: Tensor, scaling: float
) -> Tensor:
    """Attention of one token per slot, of tokens [T, K, G, D], as batched products over a range."""
    slots = slice(singles.first, singles.first + len(singles.sources))
    scores = queries[singles.sources] @ keys[slots, :, :, : singles.length]  # [S, K, G, M]
    scores = scores.float().mul_(scaling).add_(singles.bias)
    weights = scores.softmax(-1).to(queries.dtype)
    return (weights @ values[slots, :, : singles.length])[singles.rows]


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    slot_step: Step,
    slot_cache: SlotCache,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in every attention layer, with the step among the model's kwargs."""
    if softcap is not None or s_aux is not None:
        raise ValueError("its attention has capped scores or sinks")
    if sliding_window is not None and sliding_window < slot_cache.max_length:
        raise ValueError(
            f"its attention slides over {sliding_window} tokens, "
            f"fewer than the engine's max_length of {slot_cache.max_length}"
        )
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    return slot_cache.attend(layer, slot_step, query, key, value, scale), None


AttentionInterface.register(ATTENTION, _attention)
