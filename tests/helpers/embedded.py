"""A served model of one of several families, and games' turns asked of it."""

import asyncio
import copy
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import (
    GraniteConfig,
    GraniteForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from tests.helpers.builders import asking
from tests.helpers.models import random_adapter
from unstable.config import AdapterConfig
from unstable.engines.base import Engine
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.learners.model.trained import TrainedLora
from unstable.models.adapters import attach_lora
from unstable.types import Adapter, Completion

VOCAB = 96
SIZES: dict[str, Any] = {
    **{"vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 1024},
    "pad_token_id": 0,
}

FAMILIES = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES, tie_word_embeddings=True)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=24)),
    "granite": lambda: GraniteForCausalLM(
        GraniteConfig(**SIZES, attention_multiplier=0.3, logits_scaling=2.0)
    ),
}
COHORTS = {
    "lfm2": lambda: Lfm2ForCausalLM(Lfm2Config(**SIZES, layer_types=["conv", "full_attention"]))
}
BOTH = ("llama", "lfm2")  # a family with slots and one with cohorts
RANK = 4
RULES = [int(i) for i in np.random.default_rng(0).integers(1, VOCAB, 40)]


def make_model(family: str = "llama") -> PreTrainedModel:
    """A random model whose next token depends strongly on all that came before."""
    torch.manual_seed(0)
    model = (FAMILIES | COHORTS)[family]()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, mean=float(weight.dim() == 1), std=0.3)
    return model.eval().requires_grad_(False)


@cache
def adapters_of(family: str) -> list[Adapter]:
    model = make_model(family)
    return [random_adapter(model, f"main@{i}", seed=i, rank=RANK) for i in range(3)]


def with_peft(model: PreTrainedModel, adapter: Adapter) -> torch.nn.Module:
    config = AdapterConfig(rank=RANK, alpha=2 * RANK)
    peft_model = attach_lora(copy.deepcopy(model), config, seed=0)
    TrainedLora(peft_model).load(adapter)
    return peft_model.eval()


def plain_logprobs(
    model: torch.nn.Module, prompt_ids: Sequence[int], answer: Completion, temperature: float
) -> Tensor:
    ids = torch.tensor([[*prompt_ids, *answer.token_ids]])
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, len(prompt_ids) - 1 : -1]
    logprobs = (logits.float() / temperature).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]


def assert_exact(
    model: torch.nn.Module, prompt_ids: Sequence[int], answer: Completion, temperature: float = 1.0
) -> Tensor:
    """The answer's log-probabilities are those of a plain forward, which are returned."""
    expected = plain_logprobs(model, prompt_ids, answer, temperature)
    torch.testing.assert_close(torch.tensor(answer.logprobs), expected, atol=1e-4, rtol=0)
    return expected


Asked = tuple[list[int], str | None, float, Completion]
"""Prompt, adapter, temperature and answer."""


def assert_each_is_exact(
    asked: Sequence[Asked], plain: Mapping[str | None, torch.nn.Module], other: str | None
) -> None:
    """Check that each answer matches its own version and most differ from other versions."""
    apart = 0
    for prompt_ids, name, temperature, answer in asked:
        expected = assert_exact(plain[name], prompt_ids, answer, temperature)
        others = plain_logprobs(plain[other], prompt_ids, answer, temperature)
        apart += name != other and float((expected - others).abs().max()) > 0.05
    assert apart > len(asked) / 3, "the versions differ too little for this test"


@asynccontextmanager
async def serving(
    model: PreTrainedModel,
    adapters: Sequence[Adapter] = (),
    stop: Sequence[int] = (),
    **options: Any,
) -> AsyncIterator[Engine]:
    engine = EmbeddedEngine(model, stop, **options)
    for adapter in adapters:
        await engine.load(adapter)
    try:
        yield engine
    finally:
        await engine.close()


async def ask(engine: Engine, prompt_ids: Sequence[int], **request: Any) -> Completion:
    return await engine.generate(asking(prompt_ids, **request))


async def play_turns(
    engine: Engine, names: Sequence[str | None], turns: int, vocab: int, rules: Sequence[int]
) -> list[Asked]:
    """Play concurrent games whose later prompts extend the answers or only share the rules."""

    async def game(seed: int) -> list[Asked]:

        random = np.random.default_rng(seed)
        name, temperature = names[seed % len(names)], (0.7, 1.0, 1.6)[seed % 3]
        history, asked = list(rules), []
        for turn in range(turns):
            history = [*history, *random.integers(1, vocab, random.integers(1, 30)).tolist()]
            asks = {"max_tokens": int(random.integers(1, 9)), "seed": 100 * seed + turn}
            answer = await ask(engine, history, adapter=name, temperature=temperature, **asks)

            asked.append((history, name, temperature, answer))
            history = [*history, *answer.token_ids] if seed % 2 else list(rules)
        return asked

    games = await asyncio.gather(*[game(seed) for seed in range(3 * len(names))])
    return [turn for played in games for turn in played]
