from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoModelForCausalLM

from tests.helpers.learners import plain_logprobs, token_sample
from tests.helpers.mistakes import refused
from tests.helpers.models import random_adapter, tiny_model
from unstable.config import AdapterConfig, ConfigError, LearnerConfig
from unstable.learners.micro_batches import MicroBatch, MicroBatches
from unstable.learners.model import attention
from unstable.learners.model.attention import ATTENTION, LayerAttention
from unstable.learners.model.packing import COPIES_PER_TOKEN, MIN_SHARED, gathered, pack_samples
from unstable.learners.model.policy import Policy
from unstable.learners.model.token_table import TokenTable
from unstable.learners.model.trained import TrainedLora
from unstable.learners.ranks import ALONE
from unstable.models.adapters import attach_lora
from unstable.types import Segment, TokenSample

NO_SHARING = 10**9
IDS = st.integers(0, 2)  # few ids, so that prefixes are often shared
SAMPLES = st.lists(
    st.builds(
        token_sample,
        st.lists(IDS, min_size=1, max_size=12),
        st.lists(IDS, min_size=1, max_size=4),
        temperature=st.sampled_from([0.5, 1.0, 1.7]),
    ),
    min_size=1,
    max_size=8,
)
SEGMENTS = st.builds(Segment, token_ids=st.lists(IDS, min_size=1, max_size=3), scored=st.booleans())
INTERRUPTED = st.builds(
    TokenSample,
    prompt_ids=st.lists(IDS, min_size=1, max_size=12),
    segments=st.lists(SEGMENTS, max_size=3).map(
        lambda segments: (*segments, Segment(token_ids=[1, 0]))
    ),
    temperature=st.sampled_from([0.5, 1.0, 1.7]),
)


ADAPTER = random_adapter(tiny_model(), "random", seed=1)


def adapted(attention):
    model = tiny_model(attention=attention)
    peft_model = attach_lora(model, AdapterConfig(rank=4, alpha=8), seed=0)
    TrainedLora(peft_model).load(ADAPTER)
    return peft_model


@pytest.fixture(scope="module")
def policy():
    return Policy(adapted(ATTENTION))


def gradients(module, scores):
    """Gradient of an arbitrary function of the scores, over all trained parameters."""
    weights = torch.linspace(-1, 1, len(scores))
    parameters = [p for p in module.parameters() if p.requires_grad]
    grads = torch.autograd.grad((weights * scores).sum(), parameters)
    return torch.cat([grad.flatten() for grad in grads])


def test_pack_by_hand():
    samples = [token_sample([5, 6, 7], [8, 9]), token_sample([5, 6], [1, 2, 3])]
    pack = pack_samples(samples, min_shared=2)
    # Inputs 5 6 7 8 and 5 6 1 2: one root of two tokens, two branches of two.
    assert sorted(pack.ids_T.tolist()) == [1, 2, 5, 6, 7, 8]
    assert pack.segments.query_lengths == [2, 2, 2]
    assert pack.segments.key_lengths == [2, 4, 4]
    assert pack.ids_T[pack.predictors_N].tolist() == [7, 8, 6, 1, 2]
    assert pack.positions_T[pack.predictors_N].tolist() == [2, 3, 1, 2, 3]
    assert pack.targets_N.tolist() == [8, 9, 1, 2, 3]
    assert pack.samples_N.tolist() == [0, 0, 1, 1, 1]
    assert pack_samples(samples, min_shared=3).segments.query_lengths == [4, 4]


@settings(max_examples=50, deadline=None)
@given(SAMPLES, st.integers(1, 4))
def test_keys_of_the_last_token_are_the_samples_inputs(samples, min_shared):
    pack = pack_samples(samples, min_shared=min_shared)
    segments, ids = pack.segments, pack.ids_T.tolist()
    keys = segments.keys_K.split(segments.key_lengths)
    ends = dict(zip((segments.query_bounds[1:] - 1).tolist(), keys, strict=True))
    for index, sample in enumerate(samples):
        last = pack.predictors_N[pack.samples_N == index][-1].item()
        inputs = [*sample.prompt_ids, *sample.token_ids[:-1]]
        assert [ids[place] for place in ends[last].tolist()] == inputs
        assert pack.positions_T[ends[last]].tolist() == list(range(len(inputs)))
        assert ends[last][len(sample.prompt_ids) - 1] == pack.states_S[index]
    lengths = list(zip(segments.query_lengths, segments.key_lengths, strict=True))
    shapes = [[(each.num_queries, each.num_keys)] * each.num_segments for each in segments.shapes]
    assert lengths == [each for same in shapes for each in same]
    assert len(set(lengths)) == len(shapes)


def test_equal_inputs_are_packed_once_and_lengths_batched(policy, monkeypatch):
    samples = [token_sample([7, 8, i], [answer, 0]) for i in range(40) for answer in (1, 2, 2)]
    samples += [token_sample([7, 8, 9, 9], [answer]) for answer in (3, 4)]
    pack = pack_samples(samples)
    assert pack.segments.query_lengths == 81 * [4]
    calls = []
    attend = torch.nn.functional.scaled_dot_product_attention

    def spy(query, *arguments, **options):
        calls.append(query.shape[0])
        return attend(query, *arguments, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    policy(pack)
    assert calls == [81, 81]  # once per layer


def test_minimum_shared_length_grows_with_position():
    counts = {}
    for before in (10, 640):
        prompts = [[*range(before), branch] for branch in (1, 2)]
        answers = [[*range(10), answer, 0] for answer in (3, 4)]
        pack = pack_samples([token_sample(ids, answer) for ids in prompts for answer in answers])
        counts[before] = len(pack.segments.query_lengths)
    # One root, two branches, four leaves; far from the start, branches of 11 tokens are split.
    assert counts == {10: 7, 640: 5}


@settings(max_examples=25, deadline=None)
@given(st.lists(INTERRUPTED, min_size=1, max_size=8), SAMPLES, st.integers(1, 4))
def test_sharing_changes_neither_logprobs_nor_gradients(policy, samples, others, min_shared):
    table = TokenTable.of([*others, *samples]).take(range(len(others), len(others) + len(samples)))
    shared = pack_samples(table, min_shared=min_shared)
    unshared = pack_samples(samples, min_shared=NO_SHARING)
    assert len(shared.ids_T) <= len(unshared.ids_T)
    logprobs, expected = policy(shared)[0], policy(unshared)[0]
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        gradients(policy, logprobs), gradients(policy, expected), atol=1e-5, rtol=1e-5
    )


def interrupted(prompt_ids, *parts, temperature=1.0):
    """An answer of parts that were sampled, as lists, or inserted, as tuples."""
    segments = (Segment(token_ids=[*part], scored=isinstance(part, list)) for part in parts)
    return TokenSample(prompt_ids=prompt_ids, segments=tuple(segments), temperature=temperature)


@pytest.mark.parametrize("min_shared", [MIN_SHARED, 1, NO_SHARING])
def test_interrupted_answer_trains_only_sampled_tokens(policy, min_shared):
    shared = list(range(20, 60))
    masked = [
        (interrupted([*shared, 1], [4, 5], (6, 7, 8), [9, 0]), [1, 1, 0, 0, 0, 1, 1]),
        (interrupted([*shared, 1], [4, 5], (6, 7, 8), [3], temperature=0.7), [1, 1, 0, 0, 0, 1]),
        (interrupted([*shared, 1], [4, 5, 6, 7], (8,), [9, 0]), [1, 1, 1, 1, 0, 1, 1]),
        (interrupted([*shared, 1], (4, 5), [6], (7,), (8,), [9], [0]), [0, 0, 1, 0, 0, 1, 1]),
        (interrupted(shared, [1, 4], (5, 6)), [1, 1, 0, 0]),
        (token_sample([7], [8, 8]), [1, 1]),
    ]
    samples = [sample for sample, _ in masked]
    plain = adapted("sdpa")
    expected = torch.cat([plain_logprobs(plain, s)[torch.tensor(m) == 1] for s, m in masked])
    pack = pack_samples(samples, min_shared=min_shared)
    assert pack.targets_N.tolist() == [id for each in samples for id in each.scored_ids]
    assert pack.samples_N.bincount().tolist() == [sum(mask) for _, mask in masked]
    # Three have equal inputs, which are packed once even without sharing.
    assert len(pack.ids_T) == 138 if min_shared == NO_SHARING else len(pack.ids_T) < 60
    logprobs = policy(pack)[0]
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        gradients(policy, logprobs), gradients(plain, expected), atol=1e-5, rtol=1e-5
    )


def test_prompt_states_equal_a_plain_forward(policy):
    shared = list(range(20, 60))
    prompts = [[*shared, 1, 2, 3], [*shared, 9], shared, [7], shared]
    pack = pack_samples([token_sample(prompt, []) for prompt in prompts])
    assert sorted(pack.ids_T.tolist()) == sorted([*shared, 1, 2, 3, 9, 7])
    assert pack.ids_T[pack.states_S].tolist() == [3, 9, 59, 7, 59]
    scores = policy(pack)
    logprobs, entropies, states = scores.logprobs_N, scores.entropies_N, scores.states_SD
    assert len(logprobs) == len(entropies) == 0
    plain = adapted("sdpa")
    decoder = plain.get_base_model().get_decoder()
    expected = torch.stack(
        [decoder(input_ids=torch.tensor([p])).last_hidden_state[0, -1] for p in prompts]
    )
    torch.testing.assert_close(states, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        gradients(policy, states.sum(1)), gradients(plain, expected.sum(1)), atol=1e-5, rtol=1e-5
    )


@settings(max_examples=25, deadline=None)
@given(SAMPLES, st.integers(1, 4))
def test_prompt_states_are_equal_with_and_without_answers(policy, samples, min_shared):
    prompts = [TokenSample(prompt_ids=each.prompt_ids, segments=()) for each in samples]
    pack = pack_samples(prompts, min_shared=min_shared)
    assert len(pack.ids_T) <= sum(prompt.length for prompt in prompts)
    alone = policy(pack).states_SD
    answered = policy(pack_samples(samples, min_shared=min_shared)).states_SD
    torch.testing.assert_close(alone, answered, atol=1e-5, rtol=1e-5)
    half = samples[::2] + prompts[1::2]  # both kinds in one pack
    expected = torch.cat([alone[::2], alone[1::2]])
    torch.testing.assert_close(policy(pack_samples(half)).states_SD, expected, atol=1e-5, rtol=1e-5)


def test_only_predictors_of_sampled_tokens_get_gradients(policy):
    pack = pack_samples([token_sample([5, 6, 7], [8, 9]), token_sample([5, 1], [2])])
    states = []
    decoder = policy.model.get_base_model().get_decoder()
    handle = decoder.register_forward_hook(lambda *args: states.append(args[2].last_hidden_state))
    logprobs = policy(pack).logprobs_N
    handle.remove()
    (grad,) = torch.autograd.grad(logprobs.sum(), states)
    touched = grad[0].abs().sum(-1).nonzero()[:, 0]
    assert touched.tolist() == sorted(pack.predictors_N.tolist())


def test_lora_masters_are_fp32_on_a_bfloat16_base():
    policy = Policy(attach_lora(tiny_model(attention=ATTENTION).bfloat16(), AdapterConfig(), 0))
    trained = [p for p in policy.parameters() if p.requires_grad]
    frozen = [p for p in policy.parameters() if not p.requires_grad]
    assert {p.dtype for p in trained} == {torch.float32}
    assert {p.dtype for p in frozen} == {torch.bfloat16}
    logprobs = policy(pack_samples([token_sample([1, 2], [3])])).logprobs_N
    grads = torch.autograd.grad(logprobs.sum(), trained)
    assert {grad.dtype for grad in grads} == {torch.float32}


def test_unsupported_models_are_rejected():
    capped = tiny_model()
    capped.config.final_logit_softcapping = 0.1  # ignored by Llama's own forward
    with pytest.raises(ConfigError, match="logits are not linear in the last hidden states"):
        Policy(attach_lora(capped, AdapterConfig(), 0))
    both_ways = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("bert", vocab_size=40, hidden_size=24, num_hidden_layers=1)
    )
    with pytest.raises(ConfigError, match="hidden states depend on later tokens or on padding"):
        Policy(attach_lora(both_ways.eval(), AdapterConfig(targets=["query"]), 0))
    unmarked = Policy(attach_lora(tiny_model(), AdapterConfig(), 0))
    unmarked.model.get_submodule("base_model.model.model").layers = torch.nn.ModuleList()
    for layer_by_layer in (unmarked.recompute_activations, unmarked.compile_parts):
        refused("learner.compile to false", layer_by_layer)
    with pytest.raises(ConfigError, match="lm_head"):
        Policy(attach_lora(tiny_model(), AdapterConfig(targets=["q_proj", "lm_head"]), 0))


def test_micro_batches_keep_similar_prompts_together():
    prompts = [[1, 2], [3, 4], [1, 2, 5], [3, 1]]
    table = TokenTable.of([token_sample(prompt, [0]) for prompt in prompts])
    assert MicroBatches(2)(table) == [MicroBatch([0, 2], True), MicroBatch([3, 1], True)]
    assert MicroBatches(3)(table) == [MicroBatch([0, 2, 3], True), MicroBatch([1], True)]


def varlen_by_hand(
    query, key, value, query_bounds, key_bounds, *_, scale, window_size, enable_gqa=False
):
    """Reference for torch's variable-length kernel, computed segment by segment."""
    left, right = window_size
    assert right == 0
    assert enable_gqa or query.shape[1] == key.shape[1]
    bounds = (pairwise(each.tolist()) for each in (query_bounds, key_bounds))
    outputs = []
    for (q0, q1), (k0, k1) in zip(*bounds, strict=True):
        q, k, v = (x.transpose(0, 1) for x in (query[q0:q1], key[k0:k1], value[k0:k1]))
        places = torch.arange(k1 - k0)
        behind = places[k1 - k0 - (q1 - q0) :, None] - places
        mask = (behind >= 0) & ((behind <= left) | (left < 0))
        output = F.scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=enable_gqa)
        outputs.append(output.transpose(0, 1))
    return torch.cat(outputs)


def heads_of(pack, dtype=torch.float32, seed=0):
    """Random queries, keys and values of four heads and two, with gradients."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(1, heads, len(pack.ids_T), 8, generator=generator).to(dtype).requires_grad_()
        for heads in (4, 2, 2)
    ]


@pytest.mark.parametrize("window", [None, 2, 22])
@pytest.mark.parametrize("shares_heads", [True, False])
@pytest.mark.parametrize("shared", [True, False])
def test_varlen_kernel_gradients_equal_plain_attention(monkeypatch, shares_heads, shared, window):
    seen = []

    def kernel(query, key, value, *bounds, **options):
        seen.append((key, "enable_gqa" in options))
        return varlen_by_hand(query, key, value, *bounds, **options)

    monkeypatch.setattr(attention, "varlen_attn", kernel)
    monkeypatch.setattr(attention, "_SHARES_HEADS", shares_heads)
    prefix = list(range(20)) if shared else []
    pack = pack_samples([token_sample([*prefix, 30 + i, i], [4] * (1 + i % 3)) for i in range(6)])
    assert pack.segments.shared == shared
    query, key, value = heads_of(pack)
    by_bounds = attention._attend_varlen(
        query, key, value, LayerAttention(0.3, window), pack.segments
    )
    of_bounds = torch.autograd.grad(by_bounds.square().sum(), (query, key, value))
    q, k, v = (each[0].transpose(0, 1) for each in (query, key, value))
    by_shapes = attention._attend_shapes(q, k, v, LayerAttention(0.3, window), pack.segments)[None]
    of_shapes = torch.autograd.grad(by_shapes.square().sum(), (query, key, value))
    torch.testing.assert_close(by_bounds, by_shapes, atol=1e-5, rtol=1e-5)
    for one, other in zip(of_bounds, of_shapes, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    ((given, by_kernel),) = seen
    assert by_kernel == shares_heads and given.shape[1] == (2 if shares_heads else 4)
    copied = given.untyped_storage().data_ptr() != key.untyped_storage().data_ptr()
    assert copied == (shared or not shares_heads)


def test_shared_prefix_gradient_is_summed_in_fp32(monkeypatch):
    monkeypatch.setattr(attention, "varlen_attn", varlen_by_hand)
    monkeypatch.setattr(attention, "_SHARES_HEADS", True)
    prompts = [[*range(20), 30 + i // 9, i % 9, i] for i in range(64)]
    pack = pack_samples([token_sample(prompt, [4, 5]) for prompt in prompts])

    def gradient(dtype, gather=gathered):
        monkeypatch.setattr(attention, "gathered", gather)
        query, key, value = (each.to(dtype) for each in heads_of(pack, torch.bfloat16))
        output = attention._attend_varlen(query, key, value, LayerAttention(0.3), pack.segments)
        grad_output = heads_of(pack, torch.bfloat16, seed=1)[0].transpose(1, 2).to(dtype)
        (grad,) = torch.autograd.grad(output, value, grad_output)
        return grad[0, :, :20].float()

    exact = gradient(torch.float32)
    # As atomic additions on a GPU do, `[...]` rounds each sum to bfloat16.
    rounded = gradient(torch.bfloat16, lambda rows, places: rows[places])
    error, before = ((each - exact).norm() for each in (gradient(torch.bfloat16), rounded))
    assert error < before / 2


def short_turns(count=384, prompt=300, own=40, answer=20):
    """Turns of a game whose rules are most of each prompt."""
    rules = list(range(10, 10 + prompt - own))
    random = np.random.default_rng(0)
    return [
        token_sample([*rules, *random.integers(0, 9, own).tolist()], [1] * answer)
        for _ in range(count)
    ]


def test_gpu_needs_two_passes_for_short_turns_with_shared_rules():
    table = TokenTable.of(short_turns())
    on_gpu, on_processor = (
        MicroBatches.of(LearnerConfig(), ALONE, on_gpu=on_gpu) for on_gpu in (True, False)
    )
    assert len(on_processor(table)) == 24
    passes = on_gpu(table)
    assert len(passes) == 2
    assert sorted(index for one in passes for index in one.indices) == list(range(384))
    for indices, _ in passes:
        assert len(pack_samples(table.take(indices)).ids_T) <= 16384


@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, 1), max_size=40), st.integers(1, 3)),
        min_size=1,
        max_size=30,
    ),
    st.integers(20, 120),
)
def test_micro_batch_respects_its_token_limit(rows, most):
    table = TokenTable.of([token_sample([5] * 9 + own, [6] * size) for own, size in rows])
    for indices, _ in MicroBatches(None, most, as_held=True)(table):
        pack = pack_samples(table.take(indices))
        copies = len(pack.segments.keys_K) - len(pack.ids_T)
        held = len(pack.ids_T) + copies / 2 / COPIES_PER_TOKEN
        assert len(indices) == 1 or max(held, len(pack.targets_N)) <= most


def test_gpu_limits_are_tokens_unless_samples_are_set():
    asked = LearnerConfig(micro_batch_size=7, micro_batch_tokens=50)
    both = MicroBatches.of(asked, ALONE, on_gpu=True)
    assert (both.size, both.max_tokens, both.as_held) == (7, 50, True)
    assert max(len(one.indices) for one in both(TokenTable.of(short_turns(20, 6, 2, 2)))) <= 7
    unplanned = MicroBatches.of(LearnerConfig(), ALONE, on_gpu=True)
    assert (unplanned.size, unplanned.max_tokens) == (None, 16384)
    unplanned(TokenTable.of(short_turns(4)))
    unplanned.halve("full")
    assert (unplanned.size, unplanned.max_tokens) == (None, 8192)


def test_gradients_of_a_shared_prompt_are_deterministic(policy):
    generator = torch.Generator().manual_seed(0)
    samples = [
        token_sample([1, 2, 3], [int(i)]) for i in torch.randint(0, 9, (2048,), generator=generator)
    ]
    weights = torch.randn(len(samples), generator=generator)

    def gradient():
        policy.zero_grad()
        scores = policy(pack_samples(samples))
        (weights @ scores.logprobs_N + weights @ scores.states_SD.sum(1)).backward()
        return torch.cat([parameter.grad.flatten() for parameter in policy.trained.parameters])

    threads = torch.get_num_threads()
    torch.set_num_threads(4)  # makes the order of unordered sums random
    try:
        first, *others = (gradient() for _ in range(6))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-3), (torch.bfloat16, 0.1)], ids=["fp32", "bf16"]
)
def test_gpu_scores_equal_cpu_scores(policy, dtype, tolerance):
    shared = list(range(20, 60))
    samples = [token_sample([*shared, i], [4, 5, 0]) for i in range(4)] + [token_sample([7], [8])]
    expected = policy(pack_samples(samples)).logprobs_N
    on_gpu = Policy(adapted(ATTENTION)).to(device="cuda", dtype=dtype)
    logprobs = on_gpu(pack_samples(samples).to(torch.device("cuda"))).logprobs_N
    torch.testing.assert_close(logprobs.cpu(), expected, atol=tolerance, rtol=0)
    grad = gradients(on_gpu, logprobs.cpu()).float().cpu()
    assert torch.cosine_similarity(grad, gradients(policy, expected), dim=0) > 0.99
