"""LoRA layers in the base model's precision, with one autograd step for a layer and its LoRA.

PEFT multiplies fp32 masters with an fp32 copy of each layer's input, and keeps that copy. Here the
masters are rounded to the base's precision for the products, as engines do, once for all passes of
a step; the input is kept once without a cast, and the LoRA's output is added to the base's in
place. Gradients are summed in the masters' fp32.
"""

from collections.abc import Callable
from functools import partial
from types import MethodType
from typing import Any

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


def fuse_lora(model: PeftModel) -> None:
    """Have LoRA on linear layers, plain and quantized, computed by `lora_linear`, else by PEFT."""
    for module in model.modules():
        if not isinstance(module, LoraLayer):
            continue
        if is_quantized(module.base_layer):
            vars(module)["forward"] = MethodType(_quantized_forward, module)
        elif isinstance(module, Linear) and type(module.base_layer) is nn.Linear:
            vars(module)["forward"] = MethodType(_forward, module)


def _forward(module: Any, inputs: Tensor) -> Tensor:
    return _with_lora(module, inputs, module.base_layer.weight)


def _quantized_forward(module: Any, inputs: Tensor) -> Tensor:
    return _with_lora(module, inputs, partial(dense_weight, module.base_layer))


def _with_lora(module: Any, inputs: Tensor, weight_FD: Tensor | Callable[[], Tensor]) -> Tensor:
    """The layer's outputs [..., F] of inputs [..., D]."""
    a, b = module.lora_A["default"].weight, module.lora_B["default"].weight
    scale = module.scaling["default"]
    inputs_TD = inputs.reshape(-1, inputs.shape[-1])
    outputs_TF = lora_linear(inputs_TD, weight_FD, module.base_layer.bias, a, b, scale)
    return outputs_TF.view(*inputs.shape[:-1], outputs_TF.shape[-1])


def lora_linear(
    inputs_TD: Tensor,
    weight_FD: Tensor | Callable[[], Tensor],
    bias_F: Tensor | None,
    a_RD: Tensor,
    b_FR: Tensor,
    scale: float,
) -> Tensor:
    """x W' + bias + scale (x A') B', [T, F], in the precision of W, which gets no gradient.

    A dequantized W is computed again in the backward pass and not kept. If a stored W and the LoRA
    have one precision, so that their sum loses nothing, the product is x (W + scale B A)' if that
    costs fewer products per token, forward and backward: 3 F D, else 2 F D + 3 R (F + D).
    """
    if isinstance(weight_FD, Tensor) and weight_FD.dtype == a_RD.dtype:
        (outputs, inputs), rank = weight_FD.shape, len(a_RD)
        if outputs * inputs < 3 * rank * (outputs + inputs):
            return F.linear(inputs_TD, torch.addmm(weight_FD, b_FR, a_RD, alpha=scale), bias_F)
    outputs_TF: Tensor = _LoraLinear.apply(inputs_TD, weight_FD, bias_F, a_RD, b_FR, scale)
    return outputs_TF


def rounded(master: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the master's values in `dtype`, without a gradient; cached until they change."""
    if master.dtype is dtype or torch.compiler.is_compiling():  # free if compiled
        return master.detach().to(dtype)
    change, copy = _rounded.get(master, (None, master))
    if change != master._version or copy.dtype is not dtype or copy.device != master.device:
        copy = master.detach().to(dtype)
        _rounded[master] = (master._version, copy)
    return copy


class _LoraLinear(Function):
    @staticmethod
    def forward(
        ctx: Any,
        inputs_TD: Tensor,
        given_FD: Tensor | Callable[[], Tensor],
        bias_F: Tensor | None,
        a_RD: Tensor,
        b_FR: Tensor,
        scale: float,
    ) -> Tensor:
        kept_FD, ctx.make = (given_FD, None) if isinstance(given_FD, Tensor) else (None, given_FD)
        weight_FD = ctx.make() if kept_FD is None else kept_FD
        a, b = rounded(a_RD, weight_FD.dtype), rounded(b_FR, weight_FD.dtype)
        lora_TR = inputs_TD @ a.T
        ctx.save_for_backward(inputs_TD, lora_TR, kept_FD, a, b)
        ctx.scale = scale
        return F.linear(inputs_TD, weight_FD, bias_F).addmm_(lora_TR, b.T, alpha=scale)

    @staticmethod
    def backward(ctx: Any, grad_TF: Tensor) -> tuple[Tensor | None, ...]:
        inputs_TD, lora_TR, kept_FD, a_RD, b_FR = ctx.saved_tensors
        grad_TR = (grad_TF @ b_FR).mul_(ctx.scale)
        # Autograd casts these two to the masters' precision before summing them.
        grad_a_RD = grad_TR.T @ inputs_TD
        grad_b_FR = (grad_TF.T @ lora_TR).mul_(ctx.scale)
        grad_TD = None
        if ctx.needs_input_grad[0]:
            weight_FD = ctx.make() if kept_FD is None else kept_FD
            grad_TD = (grad_TF @ weight_FD).addmm_(grad_TR, a_RD)
        return grad_TD, None, None, grad_a_RD, grad_b_FR, None
