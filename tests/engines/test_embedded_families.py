"""The embedded engine serves models of many kinds exactly, by slots or by cohorts."""

import asyncio
import copy
import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tests.helpers.embedded import (
    RULES,
    VOCAB,
    ask,
    assert_each_is_exact,
    assert_exact,
    make_model,
    plain_logprobs,
    play_turns,
    serving,
)
from tests.helpers.families import make_family
from unstable.engines.embedded.cohort_forward import CohortForward
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.engines.embedded.slot_forward import SlotForward
from unstable.models.adapters import lora_pairs, make_lora
from unstable.types import Adapter, Completion

RANK = 4
SLOTS = (
    *("cohere2", "deepseek_v3", "gemma2", "gemma3_text", "gpt2", "gpt_oss", "mixtral", "opt"),
    *("phimoe", "qwen3_moe"),
)
COHORTS = ("bamba", "falcon", "falcon_h1", "lfm2", "mamba2", "qwen3_next")
UNCACHED = ("recurrent_gemma",)
SPREAD = 0.3  # spread of weights; large, so that answers depend on the whole prompt


def linears_of(model: PreTrainedModel) -> dict[str, Any]:
    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear | Conv1D)
        and module is not head
        and "Router" not in type(module).__name__
    }


def lora_of(model: PreTrainedModel, name: str, seed: int) -> Adapter:
    """Random products on every linear layer but the head."""
    random = torch.Generator().manual_seed(seed)
    pairs = {}
    for layer, module in linears_of(model).items():
        outputs, inputs = module.weight.shape
        if isinstance(module, Conv1D):
            inputs, outputs = outputs, inputs
        a, b = (
            0.1 * torch.randn(sizes, generator=random)
            for sizes in ((RANK, inputs), (outputs, RANK))
        )
        pairs[layer] = (a, b)

    return make_lora(name, pairs, rank=RANK, alpha=2 * RANK)


def merged(model: PreTrainedModel, adapter: Adapter) -> PreTrainedModel:
    """A copy with the adapter's products in its weights."""
    model = copy.deepcopy(model)
    linears = linears_of(model)
    for layer, (a, b, scale) in lora_pairs(adapter).items():
        product = scale * b @ a
        linears[layer].weight += product.T if isinstance(linears[layer], Conv1D) else product
    return model


def scored(model: torch.nn.Module, prompt_ids: list[int], token_ids: list[int]) -> Tensor:
    answer = Completion(token_ids=token_ids, logprobs=[], finish_reason="length", adapter=None)
    return plain_logprobs(model, prompt_ids, answer, 1.0)


@pytest.mark.parametrize("kind", SLOTS + COHORTS + UNCACHED)
async def test_answers_and_scores_equal_plain_forward(kind: str) -> None:
    model = make_family(kind, attention="eager", spread=SPREAD)
    adapters = [lora_of(model, f"main@{i}", seed=i) for i in range(2)]
    plain: dict[str | None, PreTrainedModel] = {None: copy.deepcopy(model)}
    plain |= {adapter.name: merged(model, adapter) for adapter in adapters}
    for each in plain.values():
        each.config.use_cache = False
    names = list(plain)
    continuations = [[1, 2, 3], [1, 2, 4], [5], [1, 7]]
    async with serving(model, adapters, max_requests=7) as engine:
        assert isinstance(engine, EmbeddedEngine)
        forward = engine._forward
        assert isinstance(forward, SlotForward if kind in SLOTS else CohortForward)
        if isinstance(forward, CohortForward):
            assert (forward._cache_name is None) == (kind in UNCACHED)
        asked = await play_turns(engine, names, turns=2, vocab=VOCAB, rules=RULES)
        prompts = [[1 + i] * (1 + i // 4) for i in range(12)]  # concurrent, some of equal length
        prompts += [(RULES * 4)[i : 139 + i] for i in range(4)]  # longer than a query block

        async def answer(number: int, prompt: list[int]) -> None:
            name = names[number % 3]
            request = {"adapter": name, "seed": number, "max_tokens": 1 + number % 6}
            asked.append((prompt, name, 1.0, await ask(engine, prompt, **request)))

        await asyncio.gather(*(answer(i, prompt) for i, prompt in enumerate(prompts)))
        scores = await asyncio.gather(
            *(engine.score(RULES, continuations, adapter=name) for name in names)
        )
        stats = engine.stats()
    assert stats["requests"] == len(asked)
    assert stats["sampled_tokens"] == sum(len(answer.token_ids) for *_, answer in asked)
    assert_each_is_exact(asked, plain, None)

    for name, found in zip(names, scores, strict=True):
        for token_ids, logprobs in zip(continuations, found, strict=True):
            expected = scored(plain[name], RULES, token_ids)
            torch.testing.assert_close(torch.tensor(logprobs), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", ["gemma2", "qwen3_next", "recurrent_gemma"])
async def test_equal_requests_in_equal_order_are_bitwise_equal(kind: str) -> None:
    model = make_family(kind, attention="eager", spread=SPREAD)
    adapter = lora_of(model, "main@1", seed=1)
    runs = []
    for _ in range(2):
        async with serving(model, [adapter], max_requests=4) as engine:
            runs.append(await play_turns(engine, [None, "main@1"], 2, VOCAB, RULES))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("kind", ["mamba2", "falcon", "lfm2", "recurrent_gemma"])
async def test_cancelled_request_does_not_affect_its_cohort(kind: str) -> None:
    model = make_family(kind, attention="eager", spread=SPREAD)
    prompts = [[*RULES, number] for number in range(4)]
    answers: list[list[Completion]] = []
    for cancelled in (False, True):
        async with serving(model, max_requests=4) as engine:
            tasks = [
                asyncio.create_task(ask(engine, prompt, seed=seed, max_tokens=12))
                for seed, prompt in enumerate(prompts)
            ]
            while engine.stats()["decode_steps"] < 3:
                await asyncio.sleep(0)
            if cancelled:
                tasks[1].cancel()
                late = await ask(engine, RULES[:5], max_tokens=3)  # reuses the free slot
                expected = scored(model, RULES[:5], late.token_ids)
                np.testing.assert_allclose(late.logprobs, expected, atol=1e-4)
            answers.append([await tasks[number] for number in (0, 2, 3)])
            assert engine.stats()["running"] == 0
    for alone, before in zip(*answers, strict=True):
        assert alone.token_ids == before.token_ids
        np.testing.assert_allclose(alone.logprobs, before.logprobs, atol=1e-5)


async def test_model_with_custom_attention_falls_back_to_cohorts(caplog):
    model = make_model()
    model.set_attn_implementation("eager")
    for layer in model.model.layers:  # they keep the plain attention
        layer.self_attn.config = copy.deepcopy(model.config)
    with caplog.at_level(logging.WARNING):
        async with serving(model) as engine:
            answer = await ask(engine, RULES)
    (line,) = caplog.messages
    assert "LlamaForCausalLM: the model does not use transformers' attention interface" in line
    assert_exact(make_model(), RULES, answer)


async def test_adapter_of_experts_is_rejected() -> None:
    model = make_family("mixtral")
    pair = torch.zeros(RANK, 32), torch.zeros(48, RANK)
    adapter = make_lora("main@1", {"model.layers.0.mlp.experts": pair}, rank=RANK, alpha=RANK)
    async with serving(model) as engine:
        with pytest.raises(ValueError, match="model.layers.0.mlp.experts, not an inner linear"):
            await engine.load(adapter)
