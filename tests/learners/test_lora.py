"""A layer and its LoRA in one autograd step: derivatives and saved tensors."""

import weakref
from typing import Any

import pytest
import torch

from tests.helpers.builders import sampled
from tests.helpers.learners import count_compiled, make_learner
from tests.helpers.models import tiny_model
from unstable.config import AdapterConfig, LearnerConfig
from unstable.learners.model import lora
from unstable.learners.model.attention import ATTENTION
from unstable.learners.model.lora import WithLora, fuse_lora, lora_linears, rounded
from unstable.learners.model.policy import Policy
from unstable.learners.optimizer import PolicyOptimizer
from unstable.models.adapters import attach_lora

SIZES = {"tokens": 6, "in": 16, "out": 24}
APART, ADDED = 2, 4
"""Ranks: 16 x 24 is more than 3 x 2 x (16 + 24), and less than 3 x 4 x (16 + 24)."""


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


def linear(inputs, *layer):
    return lora_linears(inputs, [WithLora(*layer)])[0]


@pytest.mark.parametrize("rank", [APART, ADDED])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_of_a_layer_and_its_lora(bias, rank):
    inputs, weight, bias_F, a, b = parts(torch.float64, bias, rank)
    outputs = linear(inputs, weight, bias_F, a, b, 0.5)
    expected = inputs @ weight.T + (0 if bias_F is None else bias_F) + 0.5 * inputs @ a.T @ b.T
    torch.testing.assert_close(outputs, expected)
    trained = tuple(tensor.requires_grad_() for tensor in (inputs, a, b))
    assert torch.autograd.gradcheck(
        lambda inputs, a, b: linear(inputs, weight, bias_F, a, b, 0.5), trained
    )


def test_layers_of_one_input_equal_each_alone():
    inputs, weight, bias_F, a, b = parts(torch.float64)
    _, other, _, other_a, other_b = parts(torch.float64, rank=3)
    trained = tuple(tensor.requires_grad_() for tensor in (inputs, a, b, other_a, other_b[:20]))

    def layers(a, b, other_a, other_b):
        dequantized = WithLora(lambda: other[:20], None, other_a, other_b, 2.0)
        return [WithLora(weight, bias_F, a, b, 0.5), dequantized]

    def together(inputs, *masters):
        return tuple(lora_linears(inputs, layers(*masters)))

    alone = [lora_linears(inputs, [each])[0] for each in layers(*trained[1:])]
    torch.testing.assert_close([*together(*trained)], alone)
    assert torch.autograd.gradcheck(together, trained)


def held(groups):
    return [each for each in groups if each._inputs is not None or each._outputs]


def test_models_share_inputs_or_fall_back():
    """Sibling layers are computed together where they read one tensor, else alone."""
    model = attach_lora(tiny_model().bfloat16(), AdapterConfig(rank=4), seed=0)
    groups = fuse_lora(model)
    attention: Any = next(each for each in model.modules() if hasattr(each, "q_proj"))
    layers = [attention.q_proj, attention.k_proj, attention.v_proj]
    for layer in layers:
        torch.nn.init.normal_(layer.lora_B["default"].weight)
    first, second = torch.randn(2, 6, layers[0].in_features).bfloat16()

    def nodes(inputs):
        outputs = [layer(each) for layer, each in zip(layers, inputs, strict=True)]
        for layer, each, output in zip(layers, inputs, outputs, strict=True):
            torch.testing.assert_close(output, lora._outputs([layer], each)[0])
        return len({each.grad_fn.next_functions[0][0] for each in outputs})

    assert nodes([first] * 3) == 1 and nodes([second] * 3) == 1
    assert nodes([first, second, second]) == 3
    assert nodes([first] * 3) == 1 and not held(groups)


def out_of_memory(_):
    raise torch.OutOfMemoryError


@pytest.mark.parametrize("failing", ["v_proj", "up_proj"])
def test_no_activation_outlives_a_recomputed_or_failed_pass(model, failing):
    policy = make_learner(model, gradient_checkpointing="on").policy
    inputs = policy.inputs([sampled(prompt_ids=[1, 2, 3]) for _ in range(2)])
    policy(inputs).logprobs_N.sum().backward()
    assert policy._siblings and not held(policy._siblings)
    layer = next(each for name, each in policy.named_modules() if name.endswith(failing))
    vars(layer)["forward"] = out_of_memory
    first, kept = policy.layers[0], list[int]()
    first.register_forward_pre_hook(lambda *_: kept.append(len(held(policy._siblings))))
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            policy(inputs)
        assert len(held(policy._siblings)) == 1
    assert kept == [0, 0]  # at the first layer, the failed pass is gone


def test_layers_share_compiled_graphs(monkeypatch):
    runs = count_compiled(monkeypatch)
    base = tiny_model(layers=12, attention=ATTENTION)
    policy = Policy(attach_lora(base, AdapterConfig(rank=4), seed=0))
    policy.compile_parts()
    policy(policy.inputs([sampled(prompt_ids=[1, 2, 3])])).logprobs_N.sum().backward()
    assert len(set(runs)) <= 8 < len(runs)  # graphs of all layers, and of the head


def test_lora_is_merged_into_weights_if_that_is_cheaper():
    kept: list[list[int]] = []

    def pack(tensor):
        kept.append(list(tensor.shape))
        return tensor

    found = {}
    for rank in (APART, ADDED):
        inputs, weight, bias_F, a, b = parts(torch.float32, rank=rank)
        kept.clear()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            linear(inputs.requires_grad_(), weight, bias_F, a.requires_grad_(), b, 0.5)
        found[rank] = [SIZES["tokens"], rank] in kept  # the product of inputs and A
    assert found == {APART: True, ADDED: False}


def test_masters_stay_fp32_while_products_are_bfloat16():
    inputs, weight, bias_F, a, b = parts(torch.bfloat16, rank=ADDED)
    masters = [tensor.float().requires_grad_() for tensor in (a, b)]
    outputs = linear(inputs, weight, bias_F, masters[0], masters[1], 2.0)
    assert outputs.dtype is torch.bfloat16
    outputs.float().sum().backward()
    for master, other in zip(masters, (b, a), strict=True):
        assert master.grad.dtype is torch.float32 and master.grad.shape != other.shape
        assert master.grad.any()


def test_layer_input_is_saved_once_without_a_cast():
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


def test_rounded_copy_is_cached_until_its_master_changes():
    master = torch.nn.Parameter(torch.randn(4, 8))
    optimizer = PolicyOptimizer([master], LearnerConfig(learning_rate=0.5), 1)
    first = rounded(master, torch.bfloat16)
    assert rounded(master, torch.bfloat16) is first
    torch.testing.assert_close(first, master.detach().bfloat16(), rtol=0, atol=0)
    for change in (
        lambda: optimizer.step(torch.zeros(())),
        lambda: master.copy_(torch.randn(4, 8)),
        lambda: master.lerp_(torch.zeros(4, 8), 0.5),
    ):
        master.grad = torch.ones(4, 8)
        with torch.no_grad():
            change()
        now = rounded(master, torch.bfloat16)
        assert now is not first and torch.equal(now, master.detach().bfloat16())


def test_rounded_copy_is_freed_with_its_master():
    master = torch.nn.Parameter(torch.randn(4, 8))
    kept = weakref.ref(rounded(master, torch.bfloat16))
    assert kept() is not None
    del master
    assert kept() is None


def test_gradients_of_a_step_are_summed_in_fp32():
    """Many bfloat16 passes: their gradients are summed in fp32, not in bfloat16."""
    passes = [parts(torch.bfloat16)[0] * (1 + number / 64) for number in range(64)]
    _, weight, bias_F, a, b = parts(torch.bfloat16)
    masters = [tensor.float().requires_grad_() for tensor in (a, b)]
    expected = [torch.zeros_like(master) for master in masters]
    in_bfloat16 = [torch.zeros_like(master, dtype=torch.bfloat16) for master in masters]
    for inputs in passes:
        alone = [tensor.detach().clone().requires_grad_() for tensor in masters]
        linear(inputs, weight, bias_F, alone[0], alone[1], 2.0).float().sum().backward()
        for total, rough, each in zip(expected, in_bfloat16, alone, strict=True):
            total += each.grad
            rough += each.grad.bfloat16()
        linear(inputs, weight, bias_F, masters[0], masters[1], 2.0).float().sum().backward()
    for master, total, rough in zip(masters, expected, in_bfloat16, strict=True):
        torch.testing.assert_close(master.grad, total, rtol=1e-6, atol=1e-6)
        assert (rough.float() - total).norm() > 1e-3 * total.norm()


def test_passes_of_a_step_cast_its_masters_once(monkeypatch):
    model = attach_lora(tiny_model().bfloat16(), AdapterConfig(rank=4), seed=0)
    fuse_lora(model)
    masters = {id(each) for each in model.parameters() if each.requires_grad}
    cast = []

    def spy(master, dtype):
        cast.append(rounded(master, dtype))
        return cast[-1]

    monkeypatch.setattr(lora, "rounded", spy)
    for _ in range(3):
        model(input_ids=torch.arange(1, 9)[None]).logits.sum().backward()
    assert len(cast) == 3 * len(masters) and len({id(copy) for copy in cast}) == len(masters)
