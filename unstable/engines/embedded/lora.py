"""Many versions of one base model at once: each token gets the products of its own LoRA.

A version that is a whole model replaces the base's weights during a forward of its tokens alone.
"""

from collections.abc import Iterator
from itertools import count, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from unstable.engines.adapters import fitting_pairs
from unstable.engines.embedded.slots import Ints
from unstable.engines.embedded.whole import BASE, WholeVersions
from unstable.models.shape import sizes_of
from unstable.types import Adapter

_FORWARDS = (nn.Linear.forward, Conv1D.forward)
NO_LORA = 0
"""The number for no LoRA."""


class Version(NamedTuple):
    """The numbers of the weights that compute a row. Version(weights=BASE, lora=3)"""

    weights: int  # number of the whole weights
    lora: int  # number of the LoRA added to them


class GroupedLora:
    """LoRA by forward hooks on the model's linear layers (Hu et al., arxiv.org/abs/2106.09685).

    y[rows] += (x[rows] A^T) (scale B^T) in the base model's dtype. Before a forward, `group` sets
    which tokens belong to which LoRA, and installs the weights of a whole version. A layer may see
    the tokens as [1, T, D], [B, L, D] or [N, D], or several rows per token, as [B, L, H, D].
    """

    def __init__(self, model: PreTrainedModel) -> None:
        head = model.get_output_embeddings()
        self._model, self._dtype = model, model.dtype
        self._sizes = {
            name: sizes
            for name, module in model.named_modules()
            if module is not head
            and (sizes := sizes_of(module))
            and self._is_linear(module, sizes[0])
        }
        self._weights: dict[str, dict[int, tuple[Tensor, Tensor]]] = {}  # by layer, then LoRA
        self._whole = WholeVersions(model)
        self.versions: dict[str | None, Version] = {None: Version(BASE, NO_LORA)}  # by name
        self._numbers = count(NO_LORA + 1)  # numbers for new LoRAs
        self._hooks: list[Any] = []
        self._tokens = 0  # tokens of the current forward
        self._groups: list[tuple[int, int, int]] = []  # start, stop and LoRA of tokens

    def group(self, weights: int, loras_R: Ints, stops_R: Ints) -> None:
        """Set the weights of the next forward: `weights`, and `loras_R` up to tokens `stops_R`.

        Segments of one LoRA should be adjacent.
        """
        self._whole.put(weights)
        self._groups, self._tokens = [], 0
        for lora, _, row in stretches(loras_R):
            start, self._tokens = self._tokens, int(stops_R[row - 1])
            if lora != NO_LORA:
                self._groups.append((start, self._tokens, lora))

    def add(self, adapter: Adapter) -> None:
        """Add a version; raises `ValueError` if its name is taken or it does not fit the model."""
        if adapter.name in self.versions:
            raise ValueError(f"adapter {adapter.name!r} already exists; give it another name")
        if adapter.is_whole:
            self.versions[adapter.name] = Version(self._whole.add(adapter), NO_LORA)
            return
        pairs = fitting_pairs(adapter, self._sizes)
        lora = next(self._numbers)
        for module, (a, b, scale) in pairs.items():
            down = a.T.to(self._dtype).contiguous()
            up = (b.T.float() * scale).to(self._dtype).contiguous()
            self._layer(module)[lora] = (down, up)
        self.versions[adapter.name] = Version(BASE, lora)

    def remove(self, name: str) -> None:
        """Remove a version."""
        version = self.versions.pop(name)
        if version.weights != BASE:
            self._whole.remove(version.weights)
        for weights in self._weights.values():
            weights.pop(version.lora, None)

    def detach(self) -> None:
        """Remove all hooks and restore the base's weights."""
        self._whole.put(BASE)
        for hook in self._hooks:
            hook.remove()

    def _is_linear(self, module: nn.Module, inputs: int) -> bool:
        """Return whether a layer returns one tensor: a router may be linear and return more."""
        if type(module).forward in _FORWARDS:
            return True
        with torch.inference_mode():
            output = module(torch.zeros(1, inputs, dtype=self._dtype))
        return isinstance(output, Tensor)

    def _layer(self, module: str) -> dict[int, tuple[Tensor, Tensor]]:
        """Return the LoRA weights of a linear layer; the first call hooks them into its output."""
        if module in self._weights:
            return self._weights[module]
        weights: dict[int, tuple[Tensor, Tensor]] = {}

        def add_products(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            if not self._groups:
                return
            inputs, outputs = args[0].flatten(0, -2), output.view(-1, output.shape[-1])
            each, rest = divmod(len(inputs), self._tokens)  # rows per token
            assert rest == 0, f"{module}: {len(inputs)} rows for {self._tokens} tokens"
            for start, stop, lora in self._groups:
                if lora in weights:
                    down, up = weights[lora]
                    rows = slice(start * each, stop * each)
                    outputs[rows].addmm_(inputs[rows] @ down, up)

        self._hooks.append(self._model.get_submodule(module).register_forward_hook(add_products))
        self._weights[module] = weights
        return weights


def stretches(numbers_R: Ints) -> Iterator[tuple[int, int, int]]:
    """Yield each run of equal numbers, with its first row and the row after its last.

    >>> [*stretches(np.array([2, 2, 1, 0, 0]))]
    [(2, 0, 2), (1, 2, 3), (0, 3, 5)]
    """
    edges = (np.flatnonzero(np.diff(numbers_R)) + 1).tolist()
    rows = [0, *edges, len(numbers_R)] if len(numbers_R) else []
    for start, stop in pairwise(rows):
        yield int(numbers_R[start]), start, stop
