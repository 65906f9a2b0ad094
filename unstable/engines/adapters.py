"""Whether an adapter fits a base model: asked before an engine takes it, whatever the engine."""

from collections.abc import Mapping

from torch import Tensor

from unstable.models.adapters import lora_pairs
from unstable.types import Adapter


def fitting_pairs(
    adapter: Adapter, linears: Mapping[str, tuple[int, int]]
) -> dict[str, tuple[Tensor, Tensor, float]]:
    """Per linear layer: A [rank, in], B [out, rank] and the scale of B @ A.

    `linears` holds (inputs, outputs) of the base's inner linear layers by name. Raises `ValueError`
    for an adapter of other layers or sizes; that it is a plain LoRA `models.inspection` has seen.
    """
    pairs = lora_pairs(adapter)
    if not pairs:
        raise ValueError(f"adapter {adapter.name!r} holds no LoRA weights")
    for module, (a, b, _) in pairs.items():
        if module not in linears:
            raise ValueError(
                f"adapter {adapter.name!r} targets {module}, no inner linear layer of the base"
            )
        inputs, outputs = linears[module]
        if a.shape[1] != inputs or b.shape != (outputs, a.shape[0]):
            raise ValueError(
                f"adapter {adapter.name!r} does not fit the base: {module} is {inputs} -> "
                f"{outputs}, its A is {tuple(a.shape)} and its B {tuple(b.shape)}"
            )
    return pairs
