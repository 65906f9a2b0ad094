"""Whether weights fit a base model: asked before an engine takes them, whatever the engine."""

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


def misfit(base: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str | None:
    """The first of some whole weights that is not as the base's, if one is not."""
    for name in sorted(base.keys() | given.keys()):
        shapes = [tuple(each[name].shape) if name in each else "missing" for each in (given, base)]
        if shapes[0] != shapes[1]:
            return f"{name} is {shapes[0]}, expected {shapes[1]}"
    return None
