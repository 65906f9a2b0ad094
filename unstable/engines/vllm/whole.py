"""Versions that are whole models: vLLM computes with the weights of one at a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

from safetensors.torch import load, save_file
from transformers import AutoConfig

from unstable.config.plugins import faults_to
from unstable.engines.adapters import misfit
from unstable.engines.base import EngineDiedError
from unstable.engines.vllm.adapters import AdapterStore, StoredAdapter
from unstable.engines.vllm.core import VLLMSettings
from unstable.engines.vllm.turns import VersionTurns
from unstable.engines.vllm.versions import Weights
from unstable.engines.vllm.worker import Extension
from unstable.models.adapters import WHOLE_FILE
from unstable.models.shape import on_meta
from unstable.types import Adapter


class WholeVersionFiles(AdapterStore):
    """Whole models of an engine, as files below `root` in the engine's precision.

    The prefix cache stores each version's prompts under a unique key, so they outlast other
    versions' turns.
    """

    kind = "version"

    def __init__(self, llm: Any, settings: VLLMSettings, root: Path) -> None:
        super().__init__(root, linears={}, dtype=settings.dtype, capacity=1)
        self._llm = llm
        self._base = settings.model
        self._model = on_meta(AutoConfig.from_pretrained(settings.model))
        self._turns = VersionTurns(self._put)

    async def start(self) -> None:
        """Do nothing: the engine starts with the base."""

    async def load(self, weights: Adapter) -> None:
        """Serve a version; raises `ValueError` if its name is taken or it does not fit the base."""
        stored = self.reserve(weights.name)
        with ExitStack() as undo:
            undo.callback(self.drop, stored)
            await asyncio.to_thread(self.write, stored, weights)
            undo.pop_all()
        self.serve(stored)

    def write(self, stored: StoredAdapter, adapter: Adapter) -> None:
        """Write the version's weights under the names of the model's checkpoints, for vLLM."""
        from transformers.core_model_loading import revert_weight_conversion

        tensors = load(adapter.weights)
        if wrong := misfit(dict(self._model.named_parameters()), tensors):
            raise ValueError(f"version {adapter.name!r} does not fit the base: {wrong}")
        cast = {name: tensor.to(self._dtype) for name, tensor in tensors.items()}
        named = revert_weight_conversion(self._model, cast)
        stored.folder.mkdir()
        whole = {name: each.contiguous() for name, each in named.items()}
        save_file(whole, stored.folder / WHOLE_FILE)

    async def unload(self, name: str) -> None:
        """Remove a version. No request in flight may use it."""
        stored = self.find(name)
        self.withdraw(stored)
        self.drop(stored)

    @asynccontextmanager
    async def asked(self, name: str | None) -> AsyncIterator[Weights]:
        """Wait for the version's turn, and count a request as in flight during the block."""
        folder = None if name is None else self.find(name).folder
        self.requests += name is not None
        self.hits += folder is not None and folder == self._turns.in_place
        async with self._turns.of(folder):
            yield Weights(salt=None if folder is None else f"{name}#{folder.name}")

    async def _put(self, folder: Path | None) -> None:
        """Have vLLM's workers compute with the version in a folder, or with the base."""
        from vllm.v1.engine.exceptions import EngineDeadError

        given = self._base if folder is None else str(folder)

        def fault(error: BaseException) -> NoReturn:
            if isinstance(error, EngineDeadError):
                raise error
            reason = " ".join(str(error).split())
            raise EngineDiedError(f"vLLM rejected the weights in {given}: {reason}") from error

        with faults_to(fault):  # vLLM raises plain exceptions for any fault
            await self._llm.collective_rpc(Extension.put_weights.__name__, args=(given,))
