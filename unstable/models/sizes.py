"""Sizes of a model, in elements, for estimates of memory."""

import re
from dataclasses import dataclass

from unstable.config import AdapterConfig, AnyAdapter


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A linear layer that can carry a LoRA, by its name within the model."""

    name: str
    inputs: int
    outputs: int
    spared: bool = False  # excluded from all-linear


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a decoder, in elements."""

    parameters: int  # tied weights counted once
    layers: int
    hidden: int
    intermediate: int
    queries: int  # width of all query heads together
    keys: int  # width of all key heads together
    vocabulary: int
    max_length: int  # tokens
    normalized_heads: bool  # queries and keys are normalized, as in Qwen3
    has_experts: bool
    linears: tuple[Linear, ...]

    @property
    def linear_parameters(self) -> int:
        """Number of elements of all linear layers, the ones that can be quantized."""
        return sum(linear.inputs * linear.outputs for linear in self.linears)

    def lora_linears(self, targets: str | list[str]) -> list[Linear]:
        """Return the layers that `model.adapter.targets` names, by PEFT's rules."""
        if targets == "all-linear":
            return [linear for linear in self.linears if not linear.spared]
        if isinstance(targets, str):
            return [linear for linear in self.linears if re.fullmatch(targets, linear.name)]
        ends = tuple(f".{target}" for target in targets)
        return [linear for linear in self.linears if f".{linear.name}".endswith(ends)]

    def trained_parameters(self, adapter: AnyAdapter) -> int:
        """Return the number of trained elements, which a version holds: a LoRA, or all weights."""
        return self.parameters if adapter == "none" else self.lora_parameters(adapter)

    def lora_parameters(self, adapter: AdapterConfig) -> int:
        """Return the elements of a LoRA: A [rank, in] and B [out, rank] of each target layer."""
        chosen = self.lora_linears(adapter.targets)
        return adapter.rank * sum(linear.inputs + linear.outputs for linear in chosen)
