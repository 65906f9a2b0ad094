"""LoRA layers in the base model's precision, one autograd node for layers that read one input.

PEFT multiplies fp32 masters with an fp32 copy of each layer's input, and keeps that copy. Here the
masters are rounded to the base's precision for the products, as engines do, once for all passes of
a step; the input is kept once without a cast, and the LoRA's output is added to the base's in
place. Layers that read one input share the products with A and sum its gradient in place.
Gradients are summed in the masters' fp32.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from types import MethodType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from peft import PeftModel
from peft.tuners.lora import Linear, LoraLayer
from torch import Tensor, nn
from torch.autograd import Function
from torch.utils.weak import WeakTensorKeyDictionary

from unstable.models.quantize import dense_weight, is_quantized

_rounded: WeakTensorKeyDictionary = WeakTensorKeyDictionary()
"""By master parameter: its version counter, and its copy in the compute precision."""

_SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of layers that read one input, in the order of their calls."""


def fuse_lora(model: PeftModel) -> list["Siblings"]:
    """Have `lora_linears` compute LoRA on linear layers, plain and quantized; PEFT computes others.

    Returns the groups of layers that read one input.
    """
    fused = {module for module in model.modules() if _fuses(module)}
    for layer in fused:
        # A bound method, unlike a partial, lets layers share a compiled graph.
        vars(layer)["forward"] = MethodType(_forward, layer)
    groups = list[Siblings]()
    for parent in model.modules():
        for names in _SIBLINGS:
            layers: list[Any] = [getattr(parent, name, None) for name in names]
            if fused.issuperset(layers) and len({layer.in_features for layer in layers}) == 1:
                groups.append(Siblings(layers))
    return groups


def _fuses(module: nn.Module) -> bool:
    if not isinstance(module, LoraLayer):
        return False
    base = module.base_layer
    return is_quantized(base) or (isinstance(module, Linear) and type(base) is nn.Linear)


class Siblings:
    """Layers that read the same input: the first one's call computes the outputs of all."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self._layers = layers
        self.clear()
        for layer in layers:
            vars(layer)["siblings"] = self

    def clear(self) -> None:
        """Drop outputs of a pass that ended in an error, and so its graph."""
        self._inputs: Tensor | None = None
        self._outputs: dict[Any, Tensor] = {}  # of layers not yet called with these inputs

    def forward(self, module: Any, inputs: Tensor) -> Tensor:
        """Return the layer's outputs [..., F] of inputs [..., D]."""
        if module is self._layers[0]:
            self.clear()
            outputs = _outputs(self._layers, inputs)
            self._inputs, self._outputs = inputs, dict(zip(self._layers, outputs, strict=True))
        found = self._outputs.pop(module, None) if inputs is self._inputs else None
        if not self._outputs:
            self.clear()
        return _outputs([module], inputs)[0] if found is None else found


def _forward(module: Any, inputs: Tensor) -> Tensor:
    # A compiler fuses the sums over siblings itself.
    siblings = None if torch.compiler.is_compiling() else vars(module).get("siblings")
    return _outputs([module], inputs)[0] if siblings is None else siblings.forward(module, inputs)


def _outputs(modules: Sequence[Any], inputs: Tensor) -> list[Tensor]:
    """Outputs [..., F] of each layer for inputs [..., D]."""
    layers = []
    for module in modules:
        base = module.base_layer
        weight = partial(dense_weight, base) if is_quantized(base) else base.weight
        a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
        layers.append(WithLora(weight, base.bias, a, b, module.scaling["default"]))
    found = lora_linears(inputs.reshape(-1, inputs.shape[-1]), layers)
    return [each.view(*inputs.shape[:-1], each.shape[-1]) for each in found]


class WithLora(NamedTuple):
    """A linear layer x W' + bias + scale (x A') B' in the precision of W, which gets no gradient.

    A W given as a callable is computed again in the backward pass and not kept.
    """

    weight_FD: Tensor | Callable[[], Tensor]
    bias_F: Tensor | None
    a_RD: Tensor
    b_FR: Tensor
    scale: float

    @property
    def merges(self) -> bool:
        """True if x (W + scale B A)' loses nothing to rounding and is the cheaper product.

        It costs 3 F D products per token, forward and backward, instead of 2 F D + 3 R (F + D).
        """
        weight_FD = self.weight_FD
        if not isinstance(weight_FD, Tensor) or weight_FD.dtype != self.a_RD.dtype:
            return False
        outputs, inputs = weight_FD.shape
        return outputs * inputs < 3 * len(self.a_RD) * (outputs + inputs)

    def merged(self, inputs_TD: Tensor) -> Tensor:
        """Outputs [T, F] by the merged weight."""
        assert isinstance(self.weight_FD, Tensor)
        weight_FD = torch.addmm(self.weight_FD, self.b_FR, self.a_RD, alpha=self.scale)
        return F.linear(inputs_TD, weight_FD, self.bias_F)


def lora_linears(inputs_TD: Tensor, layers: Sequence[WithLora]) -> list[Tensor]:
    """Outputs [T, F] of each layer that reads the inputs; the products with all A are one."""
    if any(layer.merges for layer in layers):
        return [
            layer.merged(inputs_TD) if layer.merges else lora_linears(inputs_TD, [layer])[0]
            for layer in layers
        ]
    scales = tuple(layer.scale for layer in layers)
    tensors = chain.from_iterable(layer[:4] for layer in layers)
    return [*_LoraLinears.apply(inputs_TD, scales, *tensors)]


def rounded(master: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the master's values in `dtype`, without a gradient; cached until they change."""
    if master.dtype is dtype or torch.compiler.is_compiling():  # free if compiled
        return master.detach().to(dtype)
    change, copy = _rounded.get(master, (None, master))
    if change != master._version or copy.dtype is not dtype or copy.device != master.device:
        copy = master.detach().to(dtype)
        _rounded[master] = (master._version, copy)
    return copy


class _LoraLinears(Function):
    """Outputs [T, F] of layers; after the scales come each layer's W, bias, A and B."""

    @staticmethod
    def forward(
        ctx: Any, inputs_TD: Tensor, scales: tuple[float, ...], *tensors: Any
    ) -> tuple[Tensor, ...]:
        given, biases = tensors[::4], tensors[1::4]
        dtype = inputs_TD.dtype
        a_RD = _joined([rounded(master, dtype) for master in tensors[2::4]], 0)
        b = [rounded(master, dtype) for master in tensors[3::4]]
        lora_TR = inputs_TD @ a_RD.T
        kept = [each if isinstance(each, Tensor) else None for each in given]
        ctx.save_for_backward(inputs_TD, lora_TR, a_RD, *b, *kept)
        ctx.scales, ctx.given = scales, [None if isinstance(x, Tensor) else x for x in given]
        parts = lora_TR.split([each.shape[1] for each in b], 1)
        layers = zip(given, biases, parts, b, scales, strict=True)
        return tuple(
            F.linear(inputs_TD, _dense(weight), bias_F).addmm_(part_TR, b_FR.T, alpha=scale)
            for weight, bias_F, part_TR, b_FR, scale in layers
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        inputs_TD, lora_TR, a_RD, *rest = ctx.saved_tensors
        b, kept = rest[: len(gradients)], rest[len(gradients) :]
        ranks = [each.shape[1] for each in b]
        each = [*zip(gradients, b, ctx.scales, strict=True)]
        grad_TR = _joined([(grad_TF @ b_FR).mul_(scale) for grad_TF, b_FR, scale in each], 1)
        parts = zip(gradients, lora_TR.split(ranks, 1), ctx.scales, strict=True)
        grad_b = [(grad_TF.T @ part_TR).mul_(scale) for grad_TF, part_TR, scale in parts]
        # Autograd casts these to the masters' precision before summing them.
        grad_a = (grad_TR.T @ inputs_TD).split(ranks)
        grad_TD = None
        if ctx.needs_input_grad[0]:
            grad_TD = grad_TR @ a_RD
            for grad_TF, weight, make in zip(gradients, kept, ctx.given, strict=True):
                grad_TD.addmm_(grad_TF, _dense(make if weight is None else weight))
        layers = [(None, None, *pair) for pair in zip(grad_a, grad_b, strict=True)]
        return grad_TD, None, *chain.from_iterable(layers)


def _dense(weight: Tensor | Callable[[], Tensor]) -> Tensor:
    return weight if isinstance(weight, Tensor) else weight()


def _joined(tensors: Sequence[Tensor], dimension: int) -> Tensor:
    return torch.cat([*tensors], dimension) if len(tensors) > 1 else tensors[0]
