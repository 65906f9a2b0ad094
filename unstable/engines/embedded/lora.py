"""Many versions of one base model at once: each token gets the low-rank products of its own LoRA.

Versions that are whole models take the base's place, for a forward of their tokens alone.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from unstable.engines.adapters import fitting_pairs
from unstable.engines.embedded.slots import Ints
from unstable.engines.embedded.whole import BASE, WholeVersions
from unstable.types import Adapter

_FORWARDS = (nn.Linear.forward, Conv1D.forward)


class RowGroup(NamedTuple):
    """Tokens [start, stop) of a forward that belong to one adapter."""

    start: int
    stop: int
    adapter: str


class GroupedLora:
    """LoRA by forward hooks on the model's linear layers (Hu et al., arxiv.org/abs/2106.09685).

    y[rows] += (x[rows] A^T) (scale B^T) in the base model's dtype. Before a forward, `group` says
    which tokens are whose, and puts their weights in place where a version has all of them. A layer
    may see them as [1, T, D], [B, L, D] or [N, D], or several rows of each, as [B, L, H, D].
    """

    def __init__(self, model: PreTrainedModel) -> None:
        head = model.get_output_embeddings()
        self._dtype = model.dtype
        self._linears = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear | Conv1D)
            and module is not head
            and self._is_linear(module)
        }
        self._sizes = {name: _sizes(linear) for name, linear in self._linears.items()}
        self._weights: dict[str, dict[str, tuple[Tensor, Tensor]]] = {}
        self._whole = WholeVersions(model)
        self._numbers: dict[str, int] = {}  # of versions; of LoRAs from 1, in their order
        self._names: dict[int, str] = {}  # by number
        self._next_number = 1
        self._hooks: list[Any] = []
        self._tokens = 0  # of the forward at hand
        self._groups: Sequence[RowGroup] = ()

    def __contains__(self, name: str) -> bool:
        return name in self._numbers

    def number(self, name: str | None) -> int:
        """A version's own number: above 0 of a LoRA, 0 of the base, below 0 of a whole model."""
        return 0 if name is None else self._numbers[name]

    def group(self, numbers_R: Ints, stops_R: Ints) -> None:
        """Whose tokens the next forward has: those up to `stops_R` belong to adapter `numbers_R`.

        Segments of one adapter should lie side by side, and be of one whole version or of none.
        """
        self._tokens = int(stops_R[-1])
        self._whole.put(min(BASE, int(numbers_R[0])))
        edges = np.flatnonzero(np.diff(numbers_R, append=numbers_R[-1] + 1))
        stops = stops_R[edges].tolist()
        self._groups = [
            RowGroup(start, stop, self._names[number])
            for start, stop, number in zip(
                [0, *stops[:-1]], stops, numbers_R[edges].tolist(), strict=True
            )
            if number > 0
        ]

    def add(self, adapter: Adapter) -> None:
        """Hold a version; `ValueError` if its name is taken or it does not fit the model."""
        if adapter.name in self._numbers:
            raise ValueError(
                f"adapter {adapter.name!r} is there already; give it a name of its own"
            )
        if adapter.is_whole:
            self._numbers[adapter.name] = self._whole.add(adapter)
            return
        pairs = fitting_pairs(adapter, self._sizes)
        for module, (a, b, scale) in pairs.items():
            down = a.T.to(self._dtype).contiguous()
            up = (b.T.float() * scale).to(self._dtype).contiguous()
            self._layer(module)[adapter.name] = (down, up)
        self._numbers[adapter.name] = self._next_number
        self._names[self._next_number] = adapter.name
        self._next_number += 1

    def remove(self, name: str) -> None:
        """Forget a version."""
        number = self._numbers.pop(name)
        if number < BASE:
            self._whole.remove(number)
            return
        del self._names[number]
        for weights in self._weights.values():
            weights.pop(name, None)

    def detach(self) -> None:
        """Leave the model as it was."""
        self._whole.put(BASE)
        for hook in self._hooks:
            hook.remove()

    def _is_linear(self, module: nn.Module) -> bool:
        """Whether it returns its outputs: a router may be a linear layer that returns more."""
        if type(module).forward in _FORWARDS:
            return True
        with torch.inference_mode():
            output = module(torch.zeros(1, _sizes(module)[0], dtype=self._dtype))
        return isinstance(output, Tensor)

    def _layer(self, module: str) -> dict[str, tuple[Tensor, Tensor]]:
        """The adapters' weights of a linear layer, which from now on are added to its output."""
        if module in self._weights:
            return self._weights[module]
        weights: dict[str, tuple[Tensor, Tensor]] = {}

        def add_products(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            if not self._groups:
                return
            inputs, outputs = args[0].flatten(0, -2), output.view(-1, output.shape[-1])
            each, rest = divmod(len(inputs), self._tokens)  # rows of a token
            assert rest == 0, f"{module} sees other rows than the tokens"
            for start, stop, adapter in self._groups:
                if adapter in weights:
                    down, up = weights[adapter]
                    rows = slice(start * each, stop * each)
                    outputs[rows].addmm_(inputs[rows] @ down, up)

        self._hooks.append(self._linears[module].register_forward_hook(add_products))
        self._weights[module] = weights
        return weights


def _sizes(linear: nn.Module) -> tuple[int, int]:
    """Inputs and outputs of a linear layer."""
    if isinstance(linear, Conv1D):
        return linear.nx, linear.nf
    return linear.in_features, linear.out_features  # type: ignore[return-value]
