"""Which slot of the cache holds what, and where a new request goes: bookkeeping without tensors.

A slot holds the keys and values of one sequence of token ids under one adapter. When its request is
done it stays as it is, so that later requests can copy the prefix they share with it.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
_ID_BITS = 64


class Copy(NamedTuple):
    """Keys and values of positions [start, stop) go from one slot to another."""

    source: int
    target: int
    start: int
    stop: int


class SlotPlacement(NamedTuple):
    """A request's slot: positions below `start` are copied or there, the rest is to compute.

    `before` copies what is there already; it must run before the next forward writes anything.
    `after` copies what that forward itself computes in another slot.
    """

    slot: int
    start: int
    before: Copy | None
    after: Copy | None


class _CacheEntry(NamedTuple):
    """The ids of a slot as bytes, to find it by. Entries of equal ids are in order of age."""

    ids: bytes
    age: int
    slot: int


class SlotTable:
    """Token ids of each slot: `ids[slot, :length]` known, `[:computed]` with keys and values.

    Slots of an adapter are listed in the order of their ids. The longest prefix that new ids share
    with any of them they share with a neighbour of their own place in the list. Unless it `shares`
    every prompt is computed whole.
    """

    def __init__(self, num_slots: int, max_length: int, *, shares: bool = True) -> None:
        self._shares = shares
        self.ids = np.zeros((num_slots, max_length), dtype=np.int64)
        self.clear()

    def clear(self) -> None:
        """Begin anew, as if nothing had ever been here; no slot may be busy."""
        num_slots = len(self.ids)
        self.length = np.zeros(num_slots, dtype=np.int64)
        self.computed = np.zeros(num_slots, dtype=np.int64)
        self._idle = OrderedDict.fromkeys(range(num_slots))  # the one used least recently first
        self._lists: dict[str | None, list[_CacheEntry]] = {}
        self._entries: list[tuple[str | None, _CacheEntry] | None] = [None] * num_slots
        self._age = 0

    def place(self, ids: Ints, adapter: str | None) -> SlotPlacement | None:
        """Give a prompt the slot to compute it in, or None while every slot is busy.

        The last id is always computed: its logits are what sampling starts from.
        """
        if not self._idle:
            return None
        key = ids.tobytes()
        source, start, is_whole = self._longest(key, adapter)
        # A slot whose content the prompt goes on from loses nothing; else the oldest one goes.
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
        """Add a sampled id to each slot, whose keys and values the next forward computes."""
        self.ids[slots, self.length[slots]] = token_ids
        self.length[slots] += 1

    def release(self, slot: int) -> None:
        """The slot's request is over; what is computed stays until the slot is needed."""
        known = self._entries[slot]
        assert known is not None, "the slot is not busy"
        computed = self.computed[slot]
        self._idle[slot] = None
        self.length[slot] = computed
        self._list(slot, known[0], self.ids[slot, :computed].tobytes())

    def forget(self, adapter: str) -> None:
        """Drop all that was computed under an adapter."""
        for entry in self._lists.pop(adapter, []):
            slot = entry.slot
            assert slot in self._idle, f"{adapter} is in use"
            self._entries[slot] = None
            self._idle.move_to_end(slot, last=False)
            self.length[slot] = self.computed[slot] = 0

    def _longest(self, key: bytes, adapter: str | None) -> tuple[int, int, bool]:
        """The slot that shares most of the ids but the last, how many, and if it is all it holds.

        That only counts for an idle slot. Of equal sequences it is the one that is there longest:
        the others may be copies of it. If no slot shares any it is -1, with 0.
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
        """Number of the ids that a slot holds under that adapter."""
        known = self._entries[slot]
        return _common_ids(key, known[1].ids) if known and known[0] == adapter else 0

    def _list(self, slot: int, adapter: str | None, key: bytes) -> None:
        """Let a slot be found by these ids and no longer by those that it had."""
        if known := self._entries[slot]:
            entries = self._lists[known[0]]
            del entries[bisect_left(entries, known[1])]
        self._age += 1
        entry = _CacheEntry(key, self._age, slot)
        insort(self._lists.setdefault(adapter, []), entry)
        self._entries[slot] = adapter, entry


def _common_ids(first: bytes, second: bytes) -> int:
    """Number of ids that two sequences share from their beginning."""
    size = min(len(first), len(second))
    differ = int.from_bytes(first[:size], "little") ^ int.from_bytes(second[:size], "little")
    if differ == 0:
        return 8 * size // _ID_BITS
    return ((differ & -differ).bit_length() - 1) // _ID_BITS
