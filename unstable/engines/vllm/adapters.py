"""Adapters in the form that vLLM loads: folders with names and numbers that are never reused."""

import contextlib
import shutil
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
from safetensors.torch import load, save

from unstable.engines.adapters import fitting_pairs
from unstable.models.adapters import make_lora, write_adapter
from unstable.types import Adapter

ZERO = "zero"
"""Name of the adapter without effect."""


def zero_adapter(linears: Mapping[str, tuple[int, int]]) -> Adapter:
    """Return an adapter without effect: zeros for one linear layer."""
    module, (inputs, outputs) = next(iter(linears.items()))
    pair = (torch.zeros(1, inputs), torch.zeros(outputs, 1))
    return make_lora(ZERO, {module: pair}, rank=1, alpha=1)


@dataclass(eq=False, slots=True)
class StoredAdapter:
    """An adapter on disk.

    Its folder stays while the adapter is served: vLLM reloads it after evicting it from memory.
    """

    name: str
    number: int  # vLLM's lora_int_id
    folder: Path
    in_flight: int = 0  # requests


class AdapterStore:
    """The adapters of one engine, in folders below `root`.

    `linears` belongs to the base. `dtype` is the engine's: vLLM casts to it anyway, and casting
    earlier halves the bytes to read. Counts the requests whose adapter was in memory, where vLLM
    holds `capacity` adapters and drops the one that ran longest ago.
    """

    kind = "adapter"
    """Word for a stored version in errors."""

    def __init__(
        self,
        root: Path,
        linears: Mapping[str, tuple[int, int]],
        dtype: torch.dtype,
        capacity: int,
    ) -> None:
        self._root = root
        self._linears = linears
        self._dtype = dtype
        self._capacity = capacity
        self._numbers = count(1)
        self._names: set[str] = set()
        self._served: dict[str, StoredAdapter] = {}
        self._resident: OrderedDict[str, None] = OrderedDict()  # most recently used last
        self.requests = 0
        self.hits = 0

    def reserve(self, name: str) -> StoredAdapter:
        """Reserve a number and a folder for a new adapter; `ValueError` if its name is taken."""
        if name in self._names:
            raise ValueError(f"{self.kind} {name!r} already exists; give it another name")
        self._names.add(name)
        number = next(self._numbers)
        return StoredAdapter(name, number, self._root / f"{number:06d}")

    def write(self, stored: StoredAdapter, adapter: Adapter) -> None:
        """Write the adapter to its folder; raises `ValueError` if it does not fit."""
        fitting_pairs(adapter, self._linears)
        tensors = {key: value.to(self._dtype) for key, value in load(adapter.weights).items()}
        cast = Adapter(name=adapter.name, weights=save(tensors), config=adapter.config)
        stored.folder.mkdir()
        write_adapter(cast, stored.folder, synced=False)  # needs no sync: temporary

    def serve(self, stored: StoredAdapter) -> None:
        """Allow requests to name the adapter; vLLM must hold it in memory by now."""
        self._served[stored.name] = stored
        self._touch(stored.name)

    def withdraw(self, stored: StoredAdapter) -> None:
        """Refuse further requests for the adapter; none may be in flight."""
        assert stored.in_flight == 0, f"{stored.name} is in use"
        del self._served[stored.name]
        self._resident.pop(stored.name, None)

    def drop(self, stored: StoredAdapter) -> None:
        """Remove an adapter that is not served, and its folder."""
        self._names.remove(stored.name)
        shutil.rmtree(stored.folder, ignore_errors=True)  # rejected adapters may have none

    def find(self, name: str) -> StoredAdapter:
        """Return the adapter of that name; raises `ValueError` if it is not served."""
        if name not in self._served:
            raise ValueError(f"{self.kind} {name!r} not found; load it first")
        return self._served[name]

    @contextlib.contextmanager
    def used(self, stored: StoredAdapter | None) -> Iterator[None]:
        """Count a request for the adapter as in flight during the block; None is the base model."""
        if stored is None:
            yield
            return
        stored.in_flight += 1
        if stored.name != ZERO:
            self.requests += 1
            self.hits += stored.name in self._resident
        self._touch(stored.name)
        try:
            yield
        finally:
            stored.in_flight -= 1
            self._touch(stored.name)

    def _touch(self, name: str) -> None:
        self._resident[name] = None
        self._resident.move_to_end(name)
        idle = [other for other in self._resident if self._served[other].in_flight == 0]
        for other in idle[: max(0, len(self._resident) - self._capacity)]:
            del self._resident[other]
