"""Versions that are whole models: vLLM computes with the weights of one at a time."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any, NoReturn

from safetensors.torch import load, save_file
from transformers import AutoConfig

from unstable.config.plugins import faults_to
from unstable.engines.adapters import misfit
from unstable.engines.base import EngineDiedError
from unstable.engines.vllm.core import VLLMSettings
from unstable.engines.vllm.turns import VersionTurns
from unstable.engines.vllm.versions import Weights
from unstable.engines.vllm.worker import Extension
from unstable.models.adapters import WHOLE_FILE
from unstable.models.shape import on_meta
from unstable.types import Adapter


class WholeVersionFiles:
    """Whole models of an engine, as files below `root` in the engine's precision.

    The prefix cache stores each version's prompts under a unique key, so they outlast other
    versions' turns.
    """

    def __init__(self, llm: Any, settings: VLLMSettings, root: Path) -> None:
        self._llm = llm
        self._base = settings.model
        self._dtype = settings.dtype
        self._root = root
        self._model = on_meta(AutoConfig.from_pretrained(settings.model))
        self._numbers = count(1)
        self._served: dict[str, Path] = {}
        self._names: set[str] = set()  # served or being written
        self._turns = VersionTurns(self._put)
        self.requests = 0
        self.hits = 0

    async def start(self) -> None:
        """Do nothing: the engine starts with the base."""

    async def load(self, weights: Adapter) -> None:
        if weights.name in self._names:
            raise ValueError(f"version {weights.name!r} already exists; give it another name")
        self._names.add(weights.name)
        folder = self._root / f"{next(self._numbers):06d}"
        with ExitStack() as undo:
            undo.callback(self._names.remove, weights.name)
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            await asyncio.to_thread(self._write, weights, folder)
            undo.pop_all()
        self._served[weights.name] = folder

    def _write(self, weights: Adapter, folder: Path) -> None:
        """Write the version's weights under the names of the model's checkpoints, for vLLM."""
        from transformers.core_model_loading import revert_weight_conversion

        tensors = load(weights.weights)
        if wrong := misfit(dict(self._model.named_parameters()), tensors):
            raise ValueError(f"version {weights.name!r} does not fit the base: {wrong}")
        cast = {name: tensor.to(self._dtype) for name, tensor in tensors.items()}
        named = revert_weight_conversion(self._model, cast)
        folder.mkdir()
        save_file({name: each.contiguous() for name, each in named.items()}, folder / WHOLE_FILE)

    async def unload(self, name: str) -> None:
        folder = self._folder(name)
        del self._served[name]
        self._names.remove(name)
        shutil.rmtree(folder)

    @asynccontextmanager
    async def asked(self, name: str | None) -> AsyncIterator[Weights]:
        """Wait for the version's turn, and count a request as in flight during the block."""
        folder = None if name is None else self._folder(name)
        self.requests += name is not None
        self.hits += folder is not None and folder == self._turns.in_place
        async with self._turns.of(folder):
            yield Weights(salt=None if folder is None else f"{name}#{folder.name}")

    def _folder(self, name: str) -> Path:
        if name not in self._served:
            raise ValueError(f"version {name!r} not found; load it first")
        return self._served[name]

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
