"""Base weights in 8 or 4 bits: the libraries that make them, and computation with them.

8 bits are torchao's, symmetric with a scale for each output; 4 bits are bitsandbytes' NF4 in blocks
of 64 with scales in 8 bits (https://arxiv.org/abs/2305.14314). vLLM quantizes the weights
identically while it loads them. Activations, embeddings, output layer and norms keep `model.dtype`.
"""

import json
from collections.abc import Callable, Mapping
from types import MethodType
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.utils.quantization_config import QuantizationConfigMixin


def quantization_config(quantize: str, dtype: torch.dtype) -> "QuantizationConfigMixin":
    """Return transformers' config for loading a quantized model, which computes in `dtype`."""
    if quantize == "8bit":
        from torchao.quantization import Int8WeightOnlyConfig
        from transformers import TorchAoConfig

        return TorchAoConfig(Int8WeightOnlyConfig(set_inductor_config=False))
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def torchao_json() -> str:
    """Return torchao's config of 8 bits in JSON, as vLLM takes it."""
    from torchao.core.config import config_to_dict
    from torchao.quantization import Int8WeightOnlyConfig

    return json.dumps(config_to_dict(Int8WeightOnlyConfig(set_inductor_config=False)))


def is_quantized(layer: nn.Module) -> bool:
    """Return whether a module is a linear layer with a quantized weight."""
    return isinstance(layer, nn.Linear) and type(layer.weight).__name__ in _DENSE


def dense_weight(layer: nn.Linear) -> Tensor:
    """Return a quantized layer's weight [F, D] as a new dense tensor, in its computing type."""
    weight = layer.weight
    return _DENSE[type(weight).__name__](weight)


def compute_alike(model: "PreTrainedModel") -> None:
    """Make each quantized layer multiply with its dense weight, dequantized for each product.

    The libraries' own CPU kernels round the scales, or have no derivative.
    """
    for module in model.modules():
        if is_quantized(module):
            vars(module)["forward"] = MethodType(_forward, module)


def _forward(layer: nn.Linear, inputs: Tensor) -> Tensor:
    return cast(Tensor, _DenseLinear.apply(inputs, layer))


class _DenseLinear(Function):
    """Product x W' + bias that keeps neither x nor the dense W."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, layer: nn.Linear) -> Tensor:
        ctx.layer = layer
        return F.linear(inputs, dense_weight(layer), layer.bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad @ dense_weight(ctx.layer), None


def _dense_8bit(weight: Any) -> Tensor:
    dense: Tensor = torch.mul(weight.qdata, weight.scale).to(weight.dtype)
    return dense


def _dense_4bit(weight: Any) -> Tensor:
    from bitsandbytes.functional import dequantize_4bit

    dense: Tensor = dequantize_4bit(weight.data, weight.quant_state)
    return dense


_DENSE: Mapping[str, Callable[[Any], Tensor]] = {
    "Int8Tensor": _dense_8bit,
    "Params4bit": _dense_4bit,
}
"""Dequantization by the class of a quantized weight; its library may not be installed."""
