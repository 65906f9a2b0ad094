"""Which slot of the cache holds what, and where a new request goes: bookkeeping without tensors.

A slot holds the keys and values of one sequence of token ids under one adapter. When its request is
done it stays as it is, so that later requests can copy the prefix they share with it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Copy(NamedTuple):
    """Keys and values of positions [start, stop) go from one slot to another."""

    source: int
    target: int
    start: int
    stop: int


class Placement(NamedTuple):
    """Where a request goes: positions below `start` are copied or there, the rest is to compute.

    `before` copies what is there already; it must run before the next forward writes anything.
    `after` copies what that forward itself computes in another slot.
    """

    slot: int
    start: int
    before: Copy | None
    after: Copy | None


class SlotTable:
    """Token ids of each slot: `ids[slot, :length]` known, `[:computed]` with keys and values."""

    def __init__(self, num_slots: int, max_length: int) -> None:
        self.ids = np.zeros((num_slots, max_length), dtype=np.int64)
        self.clear()

    def clear(self) -> None:
        """As if nothing had ever been here; no slot may be busy."""
        num_slots = len(self.ids)
        self.length = np.zeros(num_slots, dtype=np.int64)
        self.computed = np.zeros(num_slots, dtype=np.int64)
        self._adapters: list[str | None] = [None] * num_slots
        self._busy = np.zeros(num_slots, dtype=bool)
        self._last_used = np.zeros(num_slots, dtype=np.int64)
        self._clock = 0

    def shared_prefixes(self, ids: NDArray[np.int64], adapter: str | None) -> NDArray[np.int64]:
        """Per slot, how many of the first `ids` it holds under that adapter."""
        differs = self.ids[:, : len(ids)] != ids
        equal = np.where(differs.any(axis=1), differs.argmax(axis=1), len(ids))
        same_adapter = [held == adapter for held in self._adapters]
        return np.where(same_adapter, np.minimum(equal, self.length), 0)

    def place(self, ids: NDArray[np.int64], adapter: str | None) -> Placement | None:
        """Give a prompt the slot to compute it in, or None while every slot is busy.

        The last id is always computed: its logits are what sampling starts from.
        """
        idle = np.flatnonzero(~self._busy)
        if len(idle) == 0:
            return None
        shared = self.shared_prefixes(ids, adapter)
        whole = idle[(shared[idle] == self.length[idle]) & (shared[idle] > 0)]
        shared = np.minimum(shared, len(ids) - 1)
        source, start = int(shared.argmax()), int(shared.max())
        # A slot whose content the prompt goes on from loses nothing; else the oldest one goes.
        whole = whole[shared[whole] == start]
        target = int(whole[0] if len(whole) else idle[self._last_used[idle].argmin()])
        kept = int(shared[target])
        ready = max(kept, min(start, int(self.computed[source])))
        self._clock += 1
        self._last_used[target] = self._clock
        if start > kept:
            self._last_used[source] = self._clock
        self._adapters[target] = adapter
        self._busy[target] = True
        self.ids[target, : len(ids)] = ids
        self.length[target] = len(ids)
        self.computed[target] = ready
        return Placement(
            target,
            start,
            before=Copy(source, target, kept, ready) if ready > kept else None,
            after=Copy(source, target, ready, start) if start > ready else None,
        )

    def append(self, slot: int, token_id: int) -> None:
        """Add a sampled id, whose keys and values the next forward computes."""
        self.ids[slot, self.length[slot]] = token_id
        self.length[slot] += 1

    def release(self, slot: int) -> None:
        """The slot's request is over; what is computed stays until the slot is needed."""
        self._clock += 1
        self._last_used[slot] = self._clock
        self._busy[slot] = False
        self.length[slot] = self.computed[slot]

    def forget(self, adapter: str) -> None:
        """Drop all that was computed under an adapter."""
        for slot, held in enumerate(self._adapters):
            if held == adapter:
                assert not self._busy[slot], f"{adapter} is in use"
                self.length[slot] = self.computed[slot] = self._last_used[slot] = 0
