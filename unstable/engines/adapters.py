"""Checks of weights against a base model, shared by all engines."""

from collections.abc import Mapping

from torch import Tensor

from unstable.models.adapters import lora_pairs
from unstable.types import Adapter


def fitting_pairs(
    adapter: Adapter, linears: Mapping[str, tuple[int, int]]
) -> dict[str, tuple[Tensor, Tensor, float]]:
    """Return A [rank, in], B [out, rank] and the scale of B @ A for each linear layer.

    `linears` maps the names of the base's inner linear layers to (inputs, outputs). Raises
    `ValueError` if the adapter targets other layers or has other sizes. The adapter must be a plain
    LoRA, which `models.inspection` checks.
    """
    pairs = lora_pairs(adapter)
    if not pairs:
        raise ValueError(f"adapter {adapter.name!r} contains no LoRA weights")
    for module, (a, b, _) in pairs.items():
        if module not in linears:
            raise ValueError(
                f"adapter {adapter.name!r} targets {module}, not an inner linear layer of the base"
            )
        inputs, outputs = linears[module]
        if a.shape[1] != inputs or b.shape != (outputs, a.shape[0]):
            raise ValueError(
                f"adapter {adapter.name!r} does not fit the base: {module} maps {inputs} -> "
                f"{outputs}, but A has shape {tuple(a.shape)} and B {tuple(b.shape)}"
            )
    return pairs


def misfit(base: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str | None:
    """Describe the first tensor of `given` that is missing or has another shape than in `base`.

    Returns None if all names and shapes match.
    """
    for name in sorted(base.keys() | given.keys()):
        shapes = [tuple(each[name].shape) if name in each else "missing" for each in (given, base)]
        if shapes[0] != shapes[1]:
            return f"{name} is {shapes[0]}, expected {shapes[1]}"
    return None
