"""Many adapters on one base model at once: each packed row gets its own low-rank products."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn
from transformers import PreTrainedModel

from unstable.engines.adapters import fitting_pairs
from unstable.types import Adapter


class RowGroup(NamedTuple):
    """Packed rows [start, stop) that belong to one adapter."""

    start: int
    stop: int
    adapter: str


class GroupedLora:
    """LoRA by forward hooks on the model's linear layers (Hu et al., arxiv.org/abs/2106.09685).

    y[rows] += (x[rows] A^T) (scale B^T) in the base model's dtype. Before a forward, `groups` says
    which rows are whose; rows of no group are the base model's.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        head = model.get_output_embeddings()
        self._dtype = model.dtype
        self._linears = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and module is not head
        }
        self._sizes = {
            name: (linear.in_features, linear.out_features)
            for name, linear in self._linears.items()
        }
        self._weights: dict[str, dict[str, tuple[Tensor, Tensor]]] = {}
        self._numbers: dict[str, int] = {}  # of the adapters, from 1, in the order they came in
        self._next_number = 1
        self._hooks: list[Any] = []
        self.groups: Sequence[RowGroup] = ()

    def __contains__(self, name: str) -> bool:
        return name in self._numbers

    def number(self, name: str | None) -> int:
        """An adapter's own number; 0 for the base model."""
        return 0 if name is None else self._numbers[name]

    def add(self, adapter: Adapter) -> None:
        """Hold an adapter; `ValueError` if its name is taken or it does not fit the model."""
        if adapter.name in self._numbers:
            raise ValueError(
                f"adapter {adapter.name!r} is there already; give it a name of its own"
            )
        pairs = fitting_pairs(adapter, self._sizes)
        for module, (a, b, scale) in pairs.items():
            down = a.T.to(self._dtype).contiguous()
            up = (b.T.float() * scale).to(self._dtype).contiguous()
            self._layer(module)[adapter.name] = (down, up)
        self._numbers[adapter.name] = self._next_number
        self._next_number += 1

    def remove(self, name: str) -> None:
        """Forget an adapter."""
        del self._numbers[name]
        for weights in self._weights.values():
            weights.pop(name, None)

    def detach(self) -> None:
        """Leave the model as it was."""
        for hook in self._hooks:
            hook.remove()

    def _layer(self, module: str) -> dict[str, tuple[Tensor, Tensor]]:
        """The adapters' weights of a linear layer, which from now on are added to its output."""
        if module in self._weights:
            return self._weights[module]
        weights: dict[str, tuple[Tensor, Tensor]] = {}

        def add_products(_: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
            inputs, outputs = args[0].flatten(0, -2), output.view(-1, output.shape[-1])
            for start, stop, adapter in self.groups:
                if adapter in weights:
                    down, up = weights[adapter]
                    outputs[start:stop].addmm_(inputs[start:stop] @ down, up)

        self._hooks.append(self._linears[module].register_forward_hook(add_products))
        self._weights[module] = weights
        return weights
