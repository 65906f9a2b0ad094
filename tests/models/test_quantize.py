"""A base in 8 or 4 bits: what learner and engine compute with it."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.helpers.builders import asking, completion
from tests.helpers.models import random_adapter, tiny_model, tiny_tokenizer
from unstable.config import AdapterConfig, ConfigError, LearnerConfig, ModelConfig, parse
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.learners.model.load import load_policy
from unstable.learners.model.packing import pack_samples
from unstable.learners.model.policy import Policy
from unstable.learners.ranks import Ranks
from unstable.models.base import check_model, load_model
from unstable.models.merge import write_merged
from unstable.models.quantize import dense_weight, is_quantized
from unstable.planning.memory import QUANTIZED_BYTES
from unstable.planning.needs import QUANTIZE_LIBRARIES
from unstable.types import TokenSample

KINDS = [
    pytest.param(
        kind,
        marks=pytest.mark.skipif(
            importlib.util.find_spec(needed.name) is None, reason=f"{needed.name} is not installed"
        ),
    )
    for kind, needed in QUANTIZE_LIBRARIES.items()
]
HIDDEN = 64  # block size of 4-bit weights
IDS = [5, 9, 17, 33, 2, 80, 41, 7]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    model = tiny_model(hidden=HIDDEN)
    for weight in model.parameters():  # so that rounding is visible
        torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.2)
    model.save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


def policy_of(folder: Path, kind: str, targets: str | list[str], learner: LearnerConfig) -> Policy:
    lora = AdapterConfig(rank=4, alpha=8, targets=targets)
    config = ModelConfig(name=str(folder), dtype="float32", quantize=kind, adapter=lora)
    policy = load_policy(config, learner, 0, None, Ranks())
    generator = torch.Generator().manual_seed(1)
    for parameter in policy.trained.parameters:
        parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator)
    return policy


def quantized_layers(policy: Policy) -> dict[str, nn.Linear]:
    return {
        name: each
        for name, each in policy.named_modules()
        if isinstance(each, nn.Linear) and is_quantized(each)
    }


def gradients(policy: Policy) -> list[torch.Tensor | None]:
    answer = completion(token_ids=IDS[4:], logprobs=[-1.0] * 4)
    pack = pack_samples([TokenSample(prompt_ids=IDS[:4], segments=(answer,))])
    policy(pack).logprobs_N.sum().backward()
    return [parameter.grad for parameter in policy.trained.parameters]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("checkpointing", ["off", "on"])
@pytest.mark.parametrize("targets", ["all-linear", ["q_proj", "down_proj"]])
def test_gradients_match_dense_weights(folder, kind, targets, checkpointing):
    learner = LearnerConfig(gradient_checkpointing=checkpointing)
    policy = policy_of(folder, kind, targets, learner)
    plain = policy_of(folder, "none", targets, learner)
    quantized = quantized_layers(policy)
    assert len(quantized) == 2 * 7
    for name, layer in quantized.items():
        weight = plain.get_parameter(f"{name}.weight")
        assert 0 < (weight - dense_weight(layer)).abs().mean() < 0.1 * weight.abs().mean()
        weight.data = dense_weight(layer)
    for found, expected in zip(gradients(policy), gradients(plain), strict=True):
        assert expected is not None and expected.abs().max() > 0
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_backward_pass_keeps_no_dense_weights(folder: Path, kind: str) -> None:
    policy = policy_of(folder, kind, ["q_proj"], LearnerConfig())
    kept: set[tuple[int, ...]] = set()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        kept.add(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        gradients(policy)
    shapes = {dense_weight(each).shape for each in quantized_layers(policy).values()}
    assert len(shapes) == 4 and not shapes & kept


@pytest.mark.parametrize("kind", KINDS)
def test_quantized_weights_take_the_planned_bytes(kind: str, tmp_path: Path) -> None:
    """Layers so wide that output scales are small, as in real models, take the planned bytes."""
    tiny_model(hidden=512).save_pretrained(tmp_path)
    model = load_model(ModelConfig(name=str(tmp_path), dtype="bfloat16", quantize=kind))
    for layer in model.modules():
        if not (isinstance(layer, nn.Linear) and is_quantized(layer)):
            continue
        weight: Any = layer.weight
        if kind == "8bit":
            held = weight.qdata.nbytes + weight.scale.nbytes
        else:
            scales = weight.quant_state
            held = weight.data.nbytes + scales.absmax.nbytes + scales.state2.absmax.nbytes
        planned = QUANTIZED_BYTES[kind] * dense_weight(layer).numel()
        assert 0.98 * planned < held <= planned


@pytest.mark.parametrize("kind", KINDS)
async def test_engine_and_learner_logprobs_match(folder: Path, kind: str) -> None:
    policy = policy_of(folder, kind, "all-linear", LearnerConfig())
    adapter = policy.trained.export("main@1")
    config = ModelConfig(name=str(folder), dtype="float32", quantize=kind)
    engine = EmbeddedEngine(load_model(config), [0], max_requests=2)
    await engine.load(adapter)
    answer = await engine.generate(asking(IDS, adapter="main@1", max_tokens=8))
    await engine.close()
    pack = pack_samples([TokenSample(prompt_ids=IDS, segments=(answer,))])
    with torch.no_grad():
        scored = policy(pack).logprobs_N
    torch.testing.assert_close(scored, torch.tensor(answer.logprobs), atol=1e-4, rtol=0)


def test_merge_uses_the_unquantized_base(folder: Path, tmp_path: Path) -> None:
    adapter = random_adapter(tiny_model(hidden=HIDDEN), "main@1", seed=0)
    for kind in ("none", "4bit"):  # needs no library
        out = tmp_path / kind
        out.mkdir()
        write_merged(ModelConfig(name=str(folder), dtype="float32", quantize=kind), adapter, out)
    files = [(tmp_path / kind / "model.safetensors").read_bytes() for kind in ("none", "4bit")]
    assert files[0] == files[1]
    assert "quantization_config" not in json.loads((tmp_path / "4bit/config.json").read_text())


@pytest.mark.parametrize(("field", "value"), [("parallel", "fsdp"), ("compile", True)])
def test_fsdp_and_compile_reject_quantization(field: str, value: str | bool) -> None:
    with pytest.raises(ConfigError, match=f"{field} = {str(value).lower()}: conflicts with model"):
        parse({"model": {"quantize": "8bit"}, "learner": {field: value}})


def test_already_quantized_base_is_rejected(tmp_path: Path) -> None:
    tiny_model().save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    check_model(ModelConfig(name=str(tmp_path), quantize="8bit"))
    own = json.loads((tmp_path / "config.json").read_text())
    own["quantization_config"] = {"quant_method": "fp8"}
    (tmp_path / "config.json").write_text(json.dumps(own))
    check_model(ModelConfig(name=str(tmp_path)))
    with pytest.raises(ConfigError, match="model.quantize = '8bit': .* is already quantized; set"):
        check_model(ModelConfig(name=str(tmp_path), quantize="8bit"))
