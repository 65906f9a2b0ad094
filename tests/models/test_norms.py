"""RMS norms in one operation, compared with transformers' modules."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from unstable.models.norms import fuse_norms

WIDTH = 24


class HalvedRMSNorm(LlamaRMSNorm):
    """A norm that looks plain and is not."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states) / 2


class Double:
    """Values and gradient in float64, by the definition."""

    def __init__(self, rows: Tensor, weight: Tensor, slopes: Tensor, epsilon: float) -> None:
        given = rows.double().requires_grad_()
        mean = given.square().mean(-1, keepdim=True)
        values = weight.double() * given / (mean + epsilon).sqrt()
        (self.gradient,) = torch.autograd.grad(values, given, slopes.double())
        self.values = values.detach()


def made(kind: type, dtype: torch.dtype = torch.float32) -> Any:
    norm = kind(WIDTH, 1e-6).to(dtype)
    norm.weight.data.copy_(torch.randn(WIDTH, generator=torch.Generator().manual_seed(1)))
    return norm.requires_grad_(False)


@pytest.mark.parametrize("kind", [LlamaRMSNorm, Qwen3RMSNorm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fused_norm_is_no_farther_from_float64_than_transformers(
    kind: type, dtype: torch.dtype
) -> None:
    own, fused = made(kind, dtype), made(kind, dtype)
    assert fuse_norms(nn.Sequential(fused)) == 1 and "forward" in vars(fused)
    generator = torch.Generator().manual_seed(2)
    rows, slopes = (torch.randn(2, 5, WIDTH, generator=generator).to(dtype) for _ in range(2))
    found = []
    for norm in (own, fused):
        given = rows.clone().requires_grad_()
        values = norm(given)
        (gradient,) = torch.autograd.grad(values, given, slopes)
        found.append((values, gradient))
    exact = Double(rows, own.weight, slopes, 1e-6)
    (values, gradient), (values_fused, gradient_fused) = found

    assert values_fused.dtype is dtype
    assert dtype is not torch.float32 or torch.equal(values_fused, values)
    assert distance(values_fused, exact.values) <= distance(values, exact.values)
    assert distance(gradient_fused, exact.gradient) <= 1.5 * distance(gradient, exact.gradient)
    assert distance(gradient_fused, exact.gradient) < torch.finfo(dtype).eps


def distance(found: Tensor, exact: Tensor) -> float:
    return float((found.detach().double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("kind", [Gemma3RMSNorm, HalvedRMSNorm])
def test_other_norms_are_left_unchanged(kind: Any) -> None:
    norm = kind(WIDTH, eps=1e-6)
    assert fuse_norms(nn.Sequential(norm, nn.LayerNorm(WIDTH))) == 0
    assert "forward" not in vars(norm)


def test_trained_weight_gets_its_gradient_and_inputs_of_another_precision_are_normed() -> None:
    norm, own = made(LlamaRMSNorm), made(LlamaRMSNorm)
    fuse_norms(norm)
    rows = torch.randn(3, WIDTH)
    found = []
    for each in (norm, own):
        each.weight.requires_grad_()
        (gradient,) = torch.autograd.grad(each(rows).square().sum(), each.weight)
        found.append(gradient)
    torch.testing.assert_close(*found)
    assert torch.equal(norm(rows.bfloat16()), own(rows.bfloat16()))


def test_norms_without_data_are_checked_too() -> None:
    with torch.device("meta"):
        norms = nn.Sequential(LlamaRMSNorm(WIDTH), Gemma3RMSNorm(WIDTH))
    assert fuse_norms(norms) == 1
