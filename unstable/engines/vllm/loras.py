"""Versions that are LoRAs: vLLM mixes those of many requests in one pass."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from unstable.engines.vllm.adapters import ZERO, AdapterStore, StoredAdapter, zero_adapter
from unstable.engines.vllm.core import VLLMSettings
from unstable.engines.vllm.versions import Weights
from unstable.types import Adapter


class Loras(AdapterStore):
    """Adapters of an engine, in folders below `root`."""

    def __init__(self, llm: Any, settings: VLLMSettings, root: Path) -> None:
        config = llm.vllm_config
        super().__init__(root, settings.linears, settings.dtype, config.lora_config.max_cpu_loras)
        self._llm = llm
        self._on_cpu = config.device_config.device_type == "cpu"
        self._base: StoredAdapter | None = None

    async def start(self) -> None:
        """Load an adapter of zeros on a CPU, which serves the base model there.

        vLLM's CPU kernels (0.24 to 0.32) apply the last slot's adapter to requests without an
        adapter.
        """
        if self._on_cpu:
            await self.load(zero_adapter(self._linears))
            self._base = self.find(ZERO)

    async def load(self, weights: Adapter) -> None:
        """Serve an adapter; raises `ValueError` if its name is taken or it does not fit."""
        stored = self.reserve(weights.name)
        with ExitStack() as undo:
            undo.callback(self.drop, stored)
            await asyncio.to_thread(self.write, stored, weights)
            await self._read(stored)
            undo.pop_all()
        self.serve(stored)

    async def _read(self, stored: StoredAdapter) -> None:
        """Have vLLM load the adapter now: one that fails to load in a request kills the engine."""
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            await self._llm.add_lora(_lora_request(stored))
        except EngineDeadError:
            raise
        except Exception as error:  # vLLM raises plain exceptions for any fault
            reason = " ".join(str(error).split())
            raise ValueError(f"vLLM rejected adapter {stored.name!r}: {reason}") from None

    async def unload(self, name: str) -> None:
        """Remove an adapter. No request in flight may use it."""
        stored = self.find(name)
        self.withdraw(stored)
        await self._llm.remove_lora(stored.number)
        self.drop(stored)  # by now vLLM has ended all cancelled requests

    @asynccontextmanager
    async def asked(self, name: str | None) -> AsyncIterator[Weights]:
        """Count a request under an adapter, None for the base, as in flight during the block."""
        stored = self._base if name is None else self.find(name)
        with self.used(stored):
            yield Weights(lora=None if stored is None else _lora_request(stored))


def _lora_request(stored: StoredAdapter) -> Any:
    """Return vLLM's request for the adapter by a unique name, vLLM 0.24's only prefix cache key."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(
        lora_name=f"{stored.name}#{stored.number}",
        lora_int_id=stored.number,
        lora_path=str(stored.folder),
    )
