"""Models of many architectures are scored as their own forward scores each sample alone."""

from typing import Any

import pytest
import torch
from safetensors.torch import load

from tests.helpers.families import make_family
from tests.helpers.learners import (
    make_batch,
    make_learner,
    make_sample,
    plain_logprobs,
    save_model,
    token_sample,
)
from tests.helpers.learners import trained as training_weights
from tests.helpers.models import random_adapter
from unstable.config import AdapterConfig, ConfigError
from unstable.learners.micro_batches import MicroBatches
from unstable.learners.model import load as load_module
from unstable.learners.model.attention import ATTENTION
from unstable.learners.model.padding import pad_samples
from unstable.learners.model.policy import Policy
from unstable.learners.model.token_table import TokenTable
from unstable.learners.model.trained import TrainedLora
from unstable.models.adapters import attach_lora, lora_layer
from unstable.models.shape import shape_of
from unstable.models.support import PACKED as PACKED_TYPES
from unstable.types import TokenSample

PACKED = (
    *("llama", "gemma2", "gemma3_text", "gpt_oss", "cohere2", "granite", "mixtral", "qwen3_moe"),
    *("qwen2_moe", "phimoe", "gpt2", "opt", "phi"),
)
PADDED = ("qwen3_next", "lfm2", "mamba2", "bamba", "falcon_h1")
SPREAD = 0.3  # of weights, so that each part of a model affects its logits
SHARED = [3, 7, 11, 5, 9, 30, 31, 8, 4, 6]
SAMPLES = [
    token_sample([*SHARED, 12, 13, 14], [4, 5, 0]),
    token_sample([*SHARED, 12, 13, 14], [4, 6, 3], temperature=0.6),
    token_sample([*SHARED, 9], [4]),
    token_sample(SHARED, [12, 13, 14, 4, 0]),
    token_sample([7, 3], [8, 8], temperature=2.0),
]


def adapted(kind, attention):
    model = make_family(kind, attention=attention, spread=SPREAD)
    adapter = random_adapter(model, "random", seed=1)
    peft_model = attach_lora(model, AdapterConfig(rank=4, alpha=8), seed=0)
    TrainedLora(peft_model).load(adapter)
    return peft_model


def gradients(scores, parameters):
    """Gradients of an arbitrary function of the scores; zeros where it is independent of them."""
    weights = torch.linspace(-1, 1, len(scores))
    grads = torch.autograd.grad((weights * scores).sum(), parameters, allow_unused=True)
    pairs = zip(parameters, grads, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in pairs])


def trained(module):
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def assert_alike(kind, path, own_attention, plain_attention):
    model = adapted(kind, own_attention)
    assert (model.get_base_model().config.model_type in PACKED_TYPES) == (path == "packed")
    policy, plain = Policy(model), adapted(kind, plain_attention)
    assert policy.padded == (path == "padded")
    logprobs, expected = (
        policy(policy.inputs(SAMPLES)).logprobs_N,
        torch.cat([plain_logprobs(plain, each) for each in SAMPLES]),
    )

    assert logprobs.std() > 0.1
    torch.testing.assert_close(logprobs, expected, atol=1e-4, rtol=0)
    own, others = (
        gradients(scores, trained(module))
        for module, scores in ((policy, logprobs), (plain, expected))
    )
    assert (own - others).norm() < 1e-4 * others.norm()
    return policy


@pytest.mark.parametrize("kind", PACKED)
def test_packed_families_equal_their_own_forward(kind):
    assert_alike(kind, "packed", ATTENTION, "eager")


def test_packed_and_padded_scores_are_equal():
    packed, padded = (Policy(adapted("llama", attention)) for attention in (ATTENTION, "sdpa"))
    assert (packed.padded, padded.padded) == (False, True)
    prompts = [*SAMPLES, TokenSample(prompt_ids=[5, 6], segments=())]
    found = [policy(policy.inputs(prompts), entropy=True) for policy in (packed, padded)]
    one, other = found
    torch.testing.assert_close(one.samples_N, other.samples_N)
    for name in ("logprobs_N", "entropies_N", "states_SD", "hidden_ND"):
        torch.testing.assert_close(
            getattr(one, name), getattr(other, name), atol=1e-5, rtol=1e-5, msg=name
        )
    pairs = zip((packed, padded), found, strict=True)
    slopes = (gradients(scores.logprobs_N, trained(policy)) for policy, scores in pairs)
    torch.testing.assert_close(*slopes, atol=1e-5, rtol=1e-4)


def test_padded_rows_by_hand():
    rows = pad_samples([token_sample([5, 6, 7], [8, 9]), token_sample([5, 6], [1])])
    assert rows.ids_SL.tolist() == [[5, 6, 7, 8], [5, 6, 0, 0]]
    assert rows.mask_SL.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert rows.predictors_N.tolist() == [2, 3, 5]
    assert rows.targets_N.tolist() == [8, 9, 1]
    assert (rows.samples_N.tolist(), rows.states_S.tolist()) == ([0, 0, 1], [2, 5])


def test_padded_rows_have_similar_lengths_and_count_in_full():
    samples = [token_sample([1] * length, [0]) for length in (9, 2, 5, 3, 4, 8)]  # plus 1 each
    batches = MicroBatches(max_tokens=20, padded=True)(TokenTable.of(samples))
    assert [batch.indices for batch in batches] == [[1, 3, 4], [2, 5], [0]]
    assert MicroBatches(2, padded=True)(TokenTable.of(samples))[0].indices == [1, 3]
    samples = [token_sample([1] * length, [0]) for length in (100, 1000, 110, 990)]
    batches = MicroBatches(max_tokens=10_000, padded=True)(TokenTable.of(samples))
    assert [batch.indices for batch in batches] == [[0, 2], [3, 1]]  # at most a fifth is padding


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "reinforce", "kl_loss": 0.1, "kl_estimator": "exact", "entropy": 0.01},
        {"name": "ppo", "critic": {"kind": "adapter"}},
        {"name": "gspo"},
    ],
    ids=lambda algorithm: algorithm["name"],
)
def test_packed_and_padded_updates_are_equal(algorithm, tmp_path, monkeypatch):
    model = save_model(tmp_path)
    samples = [
        make_sample([1, 2, i][: 2 + i % 2], [4 + i % 3] * (1 + i % 2), float(i % 3), game_id=i)
        for i in range(9)
    ]
    weights = []
    for path in ("packed", "padded"):
        monkeypatch.setattr(load_module, "PACKED", {"llama"} if path == "packed" else set())
        learner = make_learner(
            model, algorithm=algorithm, micro_batch_size=4, gradient_checkpointing="on"
        )
        assert learner.policy.padded == learner.micro_batches.padded == (path == "padded")
        before = training_weights(learner).clone()
        for version in (0, 1):
            learner.update(make_batch(samples, version))
        weights.append(training_weights(learner))
    assert (weights[0] - before).abs().max() > 1e-3
    torch.testing.assert_close(*weights, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", ["qwen2_moe", "phimoe", "qwen3_moe", "mamba2", "gpt2"])
def test_lora_skips_routers_and_plan_agrees(kind):
    model = make_family(kind)
    shape = shape_of(model.config)
    planned = {linear.name for linear in shape.lora_linears("all-linear")}
    peft_model = attach_lora(model, AdapterConfig(), seed=0)
    adapter = TrainedLora(peft_model).export("one")
    assert {lora_layer(key) for key in load(adapter.weights)} == planned
    assert not any(word in name for name in planned for word in ("router", "expert_gate"))
    assert not adapter.config["target_parameters"]
    size = sum(p.numel() for p in peft_model.parameters() if p.requires_grad)
    assert size == shape.lora_parameters(AdapterConfig())


def test_lora_targets_accept_router_and_reject_experts():
    config = AdapterConfig(targets=["router"])
    model = attach_lora(make_family("phimoe"), config, seed=0)
    base: Any = model.get_base_model()
    shape = shape_of(base.config)
    assert len(trained(model)) == 2 * len(shape.lora_linears(["router"])) == 4
    mixtral = make_family("mixtral")
    with pytest.raises(ConfigError, match="experts are not linear layers"):
        attach_lora(mixtral, AdapterConfig(targets=["q_proj", "w1", "w2", "w3"]), seed=0)


@pytest.mark.parametrize("kind", PADDED)
def test_padded_families_equal_their_own_forward(kind):
    policy = assert_alike(kind, "padded", None, None)

    logprobs = policy(policy.inputs(SAMPLES)).logprobs_N
    policy.recompute_activations()
    again = policy(policy.inputs(SAMPLES)).logprobs_N
    torch.testing.assert_close(logprobs, again, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(
        *(gradients(each, trained(policy)) for each in (logprobs, again)), atol=1e-5, rtol=1e-4
    )
