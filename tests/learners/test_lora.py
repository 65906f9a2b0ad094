"""A layer and its LoRA in one step: the derivatives, and what is kept for them."""

import pytest
import torch

from tests.helpers.models import tiny_model
from unstable.config import AdapterConfig
from unstable.learners.model.lora import fuse_lora, lora_linear
from unstable.models.adapters import attach_lora

SIZES = {"tokens": 6, "in": 16, "out": 24}
APART, ADDED = 2, 4
"""Ranks: 16 x 24 is more than 3 x 2 x (16 + 24), and less than twice that."""


def parts(dtype, bias=True, rank=APART):
    generator = torch.Generator().manual_seed(0)
    sizes_by_name = {**SIZES, "rank": rank}

    def random(*sizes):
        return torch.randn([sizes_by_name[size] for size in sizes], generator=generator).to(dtype)

    bias_F = random("out") if bias else None
    return (
        random("tokens", "in"),
        random("out", "in"),
        bias_F,
        random("rank", "in"),
        random("out", "rank"),
    )


@pytest.mark.parametrize("rank", [APART, ADDED])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_of_a_layer_and_its_lora(bias, rank):
    inputs, weight, bias_F, a, b = parts(torch.float64, bias, rank)
    outputs = lora_linear(inputs, weight, bias_F, a, b, 0.5)
    expected = inputs @ weight.T + (0 if bias_F is None else bias_F) + 0.5 * inputs @ a.T @ b.T
    torch.testing.assert_close(outputs, expected)
    trained = tuple(tensor.requires_grad_() for tensor in (inputs, a, b))
    assert torch.autograd.gradcheck(
        lambda inputs, a, b: lora_linear(inputs, weight, bias_F, a, b, 0.5), trained
    )


def test_a_lora_is_added_to_the_weights_where_that_is_less_work():
    kept: list[list[int]] = []

    def pack(tensor):
        kept.append(list(tensor.shape))
        return tensor

    found = {}
    for rank in (APART, ADDED):
        inputs, weight, bias_F, a, b = parts(torch.float32, rank=rank)
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            lora_linear(inputs.requires_grad_(), weight, bias_F, a.requires_grad_(), b, 0.5)
        found[rank] = [SIZES["tokens"], rank] in kept  # the inputs' image under A
    assert found == {APART: True, ADDED: False}


def test_masters_stay_fp32_while_products_are_bfloat16():
    inputs, weight, bias_F, a, b = parts(torch.bfloat16, rank=ADDED)
    masters = [tensor.float().requires_grad_() for tensor in (a, b)]
    outputs = lora_linear(inputs, weight, bias_F, masters[0], masters[1], 2.0)
    assert outputs.dtype is torch.bfloat16
    outputs.float().sum().backward()
    for master, other in zip(masters, (b, a), strict=True):
        assert master.grad.dtype is torch.float32 and master.grad.shape != other.shape
        assert master.grad.any()


def test_a_layers_input_is_kept_once_and_as_it_is():
    kept = {}

    def pack(tensor):
        kept[tensor.data_ptr()] = tensor
        return tensor

    held = []
    for fuse in (False, True):
        model = attach_lora(tiny_model().bfloat16(), AdapterConfig(rank=4), seed=0)
        if fuse:
            fuse_lora(model)
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            model(input_ids=torch.arange(1, 65)[None])
        held.append(sum(tensor.numel() * tensor.element_size() for tensor in kept.values()))
    assert held[1] < 0.7 * held[0]
