"""Allocation of cache slots to requests, without tensors.

A slot holds the keys and values of one sequence of token ids under one adapter. After its request
ends the slot keeps them, so that later requests can copy the prefix they share with it.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_ID_BITS = 64


class Copy(NamedTuple):
    """A copy of the keys and values of positions [start, stop) from one slot to another."""

    source: int
    target: int
    start: int
    stop: int


class SlotPlacement(NamedTuple):
    """A request's slot; positions below `start` are copied or present, the rest must be computed.

    `before` copies positions that are computed already; it must run before the next forward writes
    anything. `after` copies positions that this forward itself computes in another slot.
    """

    slot: int
    start: int
    before: Copy | None
    after: Copy | None


class _CacheEntry(NamedTuple):
    """The ids of a slot as bytes, a key for look-ups. Entries with equal ids are ordered by age."""

    ids: bytes
    age: int
    slot: int


class SlotTable:
    """Token ids of each slot: `ids[slot, :length]` known, `[:computed]` with keys and values.

    Slots of an adapter are listed in the order of their ids, so the longest prefix that new ids
    share with any slot is shared with a neighbor of their place in the list. With `shares=False`
    every prompt is computed whole.
    """

    def __init__(self, num_slots: int, max_length: int, *, shares: bool = True) -> None:
        self._shares = shares
        self.ids = np.zeros((num_slots, max_length), dtype=np.int64)
        self.clear()

    def clear(self) -> None:
        """Reset the table to empty; no slot may be busy."""
        num_slots = len(self.ids)
        self.length = np.zeros(num_slots, dtype=np.int64)
        self.computed = np.zeros(num_slots, dtype=np.int64)
        self._idle = OrderedDict.fromkeys(range(num_slots))  # least recently used first
        self._lists: dict[str | None, list[_CacheEntry]] = {}
        self._entries: list[tuple[str | None, _CacheEntry] | None] = [None] * num_slots
        self._age = 0

    def place(self, ids: Ints, adapter: str | None) -> SlotPlacement | None:
        """Assign a slot to a prompt; returns None while every slot is busy.

        The last id is always computed: sampling needs its logits.
        """
        if not self._idle:
            return None
        key = ids.tobytes()
        source, start, is_whole = self._longest(key, adapter)
        # Reuse a slot whose whole content is a prefix of the prompt; else evict the oldest.
        target = source if is_whole else next(iter(self._idle))
        kept = min(self._shared(key, adapter, target), start)
        ready = max(kept, min(start, int(self.computed[source])))
        if start > kept and source in self._idle:
            self._idle.move_to_end(source)
        del self._idle[target]
        self._list(target, adapter, key)
        self.ids[target, : len(ids)] = ids
        self.length[target] = len(ids)
        self.computed[target] = ready
        return SlotPlacement(
            target,
            start,
            before=Copy(source, target, kept, ready) if ready > kept else None,
            after=Copy(source, target, ready, start) if start > ready else None,
        )

    def append(self, slots: Ints, token_ids: Ints) -> None:
        """Add a sampled id to each slot; the next forward computes its keys and values."""
        self.ids[slots, self.length[slots]] = token_ids
        self.length[slots] += 1

    def release(self, slot: int) -> None:
        """Mark the slot's request as ended; its computed prefix stays until the slot is needed."""
        known = self._entries[slot]
        assert known is not None, f"slot {slot} is not busy"
        computed = self.computed[slot]
        self._idle[slot] = None
        self.length[slot] = computed
        self._list(slot, known[0], self.ids[slot, :computed].tobytes())

    def forget(self, adapter: str) -> None:
        """Drop everything computed under an adapter."""
        for entry in self._lists.pop(adapter, []):
            slot = entry.slot
            assert slot in self._idle, f"{adapter} is in use"
            self._entries[slot] = None
            self._idle.move_to_end(slot, last=False)
            self.length[slot] = self.computed[slot] = 0

    def _longest(self, key: bytes, adapter: str | None) -> tuple[int, int, bool]:
        """Return the slot with the longest shared prefix, its length, and if the slot has no more.

        The last id never counts. The third value is true only for an idle slot. Among equal
        sequences the oldest wins, since the others may be copies of it. Returns (-1, 0, False) if
        no slot shares any id.
        """
        entries = self._lists.get(adapter, []) if self._shares else []
        place = bisect_left(entries, (key,))
        best = -1, 0, False
        for entry in (*entries[place : place + 1], *entries[max(place - 1, 0) : place]):
            common = _common_ids(key, entry.ids)
            shared = min(common, 8 * len(key) // _ID_BITS - 1)
            is_whole = 8 * len(entry.ids) == common * _ID_BITS and entry.slot in self._idle
            if shared and (shared, is_whole) > best[1:]:
                best = entry.slot, shared, is_whole
        return best

    def _shared(self, key: bytes, adapter: str | None, slot: int) -> int:
        """Return the number of leading ids that a slot holds under that adapter."""
        known = self._entries[slot]
        return _common_ids(key, known[1].ids) if known and known[0] == adapter else 0

    def _list(self, slot: int, adapter: str | None, key: bytes) -> None:
        """Index a slot by these ids instead of its former ids."""
        if known := self._entries[slot]:
            entries = self._lists[known[0]]
            del entries[bisect_left(entries, known[1])]
        self._age += 1
        entry = _CacheEntry(key, self._age, slot)
        insort(self._lists.setdefault(adapter, []), entry)
        self._entries[slot] = adapter, entry


def _common_ids(first: bytes, second: bytes) -> int:
    """Return the number of ids that two sequences share from their beginning."""
    size = min(len(first), len(second))
    differ = int.from_bytes(first[:size], "little") ^ int.from_bytes(second[:size], "little")
    if differ == 0:
        return 8 * size // _ID_BITS
    return ((differ & -differ).bit_length() - 1) // _ID_BITS
