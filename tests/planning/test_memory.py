"""Estimates beside what is really there: parameters counted, tensors kept for a backward pass."""

import os
import shutil
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen3Config,
    T5Config,
)

from tests.helpers.learners import token_sample
from tests.helpers.machines import QWEN
from tests.helpers.mistakes import refused
from tests.helpers.models import hollow_files
from tests.helpers.rows import every_row
from unstable.config import AdapterConfig, ModelConfig
from unstable.engines.embedded.needs import embedded_memory
from unstable.engines.vllm.needs import vllm_memory
from unstable.learners.model.attention import ATTENTION
from unstable.learners.model.packing import Pack, pack_samples
from unstable.learners.model.policy import Policy
from unstable.models.adapters import attach_lora
from unstable.models.base import check_model
from unstable.models.shape import read_shape, shape_of
from unstable.models.wheels import SMOLLM2, unpacked_wheel
from unstable.planning.memory import activation_bytes, learner_memory, logits_bytes

LORA = AdapterConfig(rank=8)
SMALL: dict[str, Any] = {
    **{"vocab_size": 512, "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 3},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 80},
}

CONFIGS = [
    LlamaConfig(**SMALL),
    Qwen3Config(**SMALL),
    Qwen3Config(**SMALL, tie_word_embeddings=True),
]
QWEN_SHAPE = read_shape(ModelConfig(name=str(QWEN)))


@every_row("config", *CONFIGS)
@every_row("targets", "all-linear", ["q_proj", "v_proj"], r".*\.mlp\.\w+_proj")
def test_parameter_counts_match_the_real_model(config, targets):
    model = AutoModelForCausalLM.from_config(config)
    shape = shape_of(config)
    assert shape.parameters == sum(parameter.numel() for parameter in model.parameters())
    adapter = AdapterConfig(rank=8, targets=targets)
    lora = attach_lora(model.requires_grad_(False), adapter, seed=0)
    trained = sum(p.numel() for p in lora.parameters() if p.requires_grad)
    assert shape.lora_parameters(adapter) == trained


def test_qwen_shape_has_known_sizes() -> None:
    assert QWEN_SHAPE.parameters == 1_720_574_976
    assert (QWEN_SHAPE.queries, QWEN_SHAPE.keys, QWEN_SHAPE.normalized_heads) == (2048, 1024, True)
    # Keys and values: 2 x 28 layers x 1024 x 2 bytes.
    options: dict[str, Any]
    options = {"max_rank": 8, "max_loras": 1, "max_requests": 1, "graphs": False}
    assert vllm_memory(QWEN_SHAPE, "bfloat16", **options).token_bytes == 114_688


def test_embedded_models_shape_matches_its_weights() -> None:
    config = AutoConfig.from_pretrained(unpacked_wheel(SMOLLM2))
    assert read_shape(ModelConfig(name=SMOLLM2)) == shape_of(config)
    assert shape_of(config).parameters == 134_515_008


def test_missing_config_or_wrong_kind_is_one_line(tmp_path: Any) -> None:
    refused("model.name = .* cannot be read", read_shape, ModelConfig(name=str(tmp_path)))
    T5Config().save_pretrained(tmp_path)
    refused("not a causal language model", read_shape, ModelConfig(name=str(tmp_path)))


def test_unusual_configs_have_a_shape() -> None:
    shape = shape_of(GPT2Config(n_layer=1))  # Conv1D layers, no separate key heads
    assert (shape.layers, shape.hidden, shape.intermediate) == (1, 768, 3072)
    assert (shape.queries, shape.keys, shape.max_length) == (768, 768, 1024)
    assert [(each.inputs, each.outputs) for each in shape.linears][:2] == [(768, 2304), (768, 768)]
    fields: dict[str, Any] = {
        **{"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99},
        **{"pad_token_id": 0, "eos_token_id": 1, "max_position_embeddings": 1024},
        "original_max_position_embeddings": 256,
        "rope_scaling": {"type": "longrope", "long_factor": [1.0] * 8, "short_factor": [1.0] * 8},
    }
    long = Phi3Config(**fields)
    assert shape_of(long).max_length == 256  # longer sequences would change others in their batch
    mamba = shape_of(MambaConfig(num_hidden_layers=1, hidden_size=64))
    assert (mamba.layers, mamba.queries, mamba.keys) == (1, 0, 0)
    assert mamba.max_length > 100_000
    spared = [each.name.rpartition(".")[2] for each in mamba.linears if each.spared]
    assert spared == ["dt_proj", "out_proj"]


def test_shape_expands_home_in_model_path(tmp_path, monkeypatch):
    shutil.copytree(QWEN, tmp_path / "models/x")
    hollow_files(tmp_path / "models/x")
    monkeypatch.setenv("HOME", str(tmp_path))
    model = ModelConfig(name="~/models/x")
    check_model(model)
    assert read_shape(model) == QWEN_SHAPE


def kept_bytes(config: PretrainedConfig, dtype: torch.dtype, pack: Pack) -> int:
    """Bytes that a real forward pass keeps for the backward pass, excluding parameters."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation=ATTENTION, dtype=dtype)
    policy = Policy(attach_lora(model.eval().requires_grad_(False), LORA, seed=0))
    parameters = {p.untyped_storage().data_ptr() for p in policy.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        policy(pack)
    return sum(storage.nbytes() for storage in kept.values())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", [LlamaConfig, Qwen3Config])
def test_activation_estimate_matches_a_real_pass(kind, dtype):
    pack = pack_samples([token_sample(list(range(400)), [1, 2, 3])])
    tokens = len(pack.ids_T)
    few, many = (kind(**SMALL | {"num_hidden_layers": layers}) for layers in (2, 4))
    precision = getattr(torch, dtype)
    layer = (kept_bytes(many, precision, pack) - kept_bytes(few, precision, pack)) / 2
    estimate = tokens * activation_bytes(shape_of(few), LORA, dtype, on_gpu=False)
    if dtype == "bfloat16":  # bfloat16 copies of the masters, two layers
        estimate += shape_of(few).lora_parameters(LORA)
    assert estimate == pytest.approx(layer, rel=0.02)


LOGITS = """
import torch
from unstable.learners.model.head import Head
from unstable.learners.model.logprobs import DivergenceTarget, selected_logprobs

V, N = 40_000, 768


def resident(name):
    (line,) = [line for line in open("/proc/self/status") if line.startswith(name)]
    return int(line.split()[1]) * 1024


def taken(dtype, exact_kl):
    head = torch.randn(V, 64, dtype=dtype)
    hidden = torch.randn(N, 64, dtype=dtype, requires_grad=True)
    reference = torch.randn(N, 64) if exact_kl else None
    targets, temperatures = torch.randint(0, V, (N,)), torch.ones(N)

    def score(n):
        of = {} if reference is None else {"reference": DivergenceTarget(reference[:n])}
        rows = 256 * (1 + len(of))
        selected_logprobs(
            hidden[:n], Head(head), targets[:n], temperatures[:n], rows, entropy=True, aims=of
        )

    score(N)  # warms up threads and kernels
    before = resident("VmRSS")
    open("/proc/self/clear_refs", "w").write("5")  # resets the peak
    score(N)
    return (resident("VmHWM") - before) / (256 * V)


for exact_kl in (False, True):
    print(*(taken(dtype, exact_kl) for dtype in (torch.float32, torch.bfloat16)))
"""


def test_logits_estimate_matches_measured_memory() -> None:
    """Peak resident memory of a process that scores three chunks of rows, fp32 and bf16."""
    given_back = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # freed memory is no longer resident
    command = [sys.executable, "-c", LOGITS]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 300}
    done = subprocess.run(command, env=os.environ | given_back, **options)

    for exact_kl, line in zip((False, True), done.stdout.splitlines(), strict=True):
        estimate = logits_bytes(QWEN_SHAPE, exact_kl=exact_kl)
        for each in line.split():
            measured = float(each) * 256 * QWEN_SHAPE.vocabulary
            assert 0.85 * estimate < measured < 1.05 * estimate, (exact_kl, line)


def test_tensor_parallel_splits_half_of_each_lora() -> None:
    def slots(tensor_parallel: int) -> float:
        options: dict[str, Any] = {"max_rank": 16, "max_loras": 1, "max_requests": 1}
        options["tensor_parallel"] = tensor_parallel
        memory = vllm_memory(QWEN_SHAPE, "bfloat16", **options)
        return memory.fixed["1 LoRA slots"] / (2 * 16)  # parameters per rank

    hidden, queries, keys, inner = 2048, 2048, 1024, 6144
    ends = 2 * (151_936 + hidden)
    for n in (1, 2, 4):
        column = 5 * hidden + (queries + 2 * keys + 2 * inner) / n  # q, k, v, gate, up
        row = (queries + inner) / n + 2 * hidden  # o, down
        assert slots(n) == ends + 28 * (column + row)


@given(tokens=st.integers(0, 10**6), checkpointing=st.booleans(), on_gpu=st.booleans())
def test_tokens_inverts_total(tokens, checkpointing, on_gpu):
    learner = learner_memory(QWEN_SHAPE, LORA, "bfloat16", on_gpu=on_gpu)
    assert learner.tokens(learner.total(tokens, checkpointing), checkpointing) == tokens
    assert learner.tokens(learner.total(tokens, checkpointing) - 1, checkpointing) == tokens - 1
    engine = embedded_memory(QWEN_SHAPE, LORA, "bfloat16", adapters=3)
    assert engine.tokens(engine.total(tokens)) == tokens


def test_memory_saving_options_lower_the_estimate() -> None:
    plain = learner_memory(QWEN_SHAPE, LORA, "bfloat16", on_gpu=True)
    assert plain.checkpointed_token_bytes < plain.token_bytes / 4
    sharded = learner_memory(QWEN_SHAPE, LORA, "bfloat16", on_gpu=True, ranks=4, sharded=True)
    assert sharded.fixed["weights"] < plain.fixed["weights"] / 2
    reference = learner_memory(QWEN_SHAPE, LORA, "bfloat16", on_gpu=True, others=1)
    assert reference.total(0, False) > plain.total(0, False)

    def engine(**changes: Any) -> int:
        options = {"max_rank": 16, "max_loras": 8, "max_requests": 64} | changes
        return vllm_memory(QWEN_SHAPE, "bfloat16", **options).total(10_000)

    cheaper = {"max_rank": 8, "max_loras": 1, "graphs": False, "tensor_parallel": 2}
    for name, value in {**cheaper, "max_requests": 8}.items():
        assert engine(**{name: value}) < engine()


def test_embedding_and_output_layer_are_whole_on_each_rank() -> None:
    """Embedding and output layer are gathered for a whole pass, plus two layers at a time."""
    shape = read_shape(ModelConfig(name="Qwen/Qwen3-8B"))
    few, many = (
        learner_memory(shape, LORA, "bfloat16", on_gpu=True, ranks=ranks, sharded=True)
        for ranks in (2, 4)
    )
    ends = 2 * 2 * 151_936 * 4_096  # two matrices of 2 bytes each
    assert many.fixed["weights"] > 16.38e9 / 4 + ends
    halves = few.fixed["weights"] - many.fixed["weights"]
    assert halves == pytest.approx(16.38e9 / 4, rel=1e-3)
