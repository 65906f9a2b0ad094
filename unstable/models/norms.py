"""RMS norms in one operation of torch, instead of the several of transformers' modules.

On a GPU, torch computes it in one kernel forward and one backward, with a fraction of the memory
traffic (`bench.kernels`). In fp32 the outputs on a CPU are equal bit by bit; in bfloat16 torch
rounds once and transformers twice. See https://arxiv.org/abs/1910.07467.
"""

import copy
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_WITHIN = 1e-5
"""Relative tolerance in fp32 by which a module may differ from the plain norm."""


def fuse_norms(model: nn.Module) -> int:
    """Have plain RMS norms computed by `torch.nn.functional.rms_norm`; return their number.

    A norm is plain if it divides by the root mean square and multiplies by its weight. Others, such
    as Gemma's, which multiply by 1 + weight, are left unchanged.
    """
    checked: dict[tuple[type, float, int], bool] = {}
    fused = 0
    module: Any
    for module in model.modules():
        epsilon = _epsilon(module)
        if epsilon is None:
            continue
        key = type(module), epsilon, len(module.weight)
        if key not in checked:
            checked[key] = _is_plain(module, epsilon)
        if checked[key]:
            # A bound method, unlike a partial, lets layers share a compiled graph.
            vars(module)["forward"] = MethodType(_forward, module)
            fused += 1
    return fused


def _epsilon(module: Any) -> float | None:
    """Return what a module that may be a plain norm adds to the mean square; None for others."""
    if not type(module).__name__.endswith("RMSNorm"):
        return None
    if [name for name, _ in module.named_parameters()] != ["weight"] or module.weight.ndim != 1:
        return None
    epsilon = _epsilon_of(module)
    return epsilon if isinstance(epsilon, float) else None


def _epsilon_of(module: Any) -> Any:
    return getattr(module, "variance_epsilon", getattr(module, "eps", None))


@torch.no_grad()
def _is_plain(module: nn.Module, epsilon: float) -> bool:
    """Return whether a module's class computes the plain norm, by running it on random rows."""
    generator = torch.Generator().manual_seed(0)
    tried: Any = copy.deepcopy(module).to_empty(device="cpu").float()
    width = len(tried.weight)
    tried.weight.copy_(torch.randn(width, generator=generator))
    rows = torch.randn(3, width, generator=generator)
    try:
        found = tried(rows)
    except (TypeError, RuntimeError):  # takes more than hidden states
        return False
    expected = F.rms_norm(rows, (width,), tried.weight, epsilon)
    return torch.allclose(found, expected, rtol=_WITHIN, atol=_WITHIN)


def _forward(module: Any, hidden_states: Tensor) -> Tensor:
    weight = module.weight
    if hidden_states.dtype is not weight.dtype:  # torch has no kernel for two precisions
        found: Tensor = type(module).forward(module, hidden_states)
        return found
    return F.rms_norm(hidden_states, weight.shape, weight, _epsilon_of(module))
