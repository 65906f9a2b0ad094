"""Versions that are whole models, served side by side with each other, the base and LoRAs."""

import asyncio

import pytest
import torch

from tests.helpers.embedded import (
    BOTH,
    RULES,
    VOCAB,
    adapters_of,
    ask,
    assert_each_is_exact,
    make_model,
    play_turns,
    serving,
    with_peft,
)
from tests.helpers.models import random_whole, tiny_model, with_weights


@pytest.mark.parametrize("family", ["qwen2", *BOTH])  # qwen2 has tied weights
async def test_mixed_whole_versions_and_loras_equal_plain_forwards(family):
    model = make_model(family)
    wholes = [random_whole(model, f"main@{number}", seed=number) for number in (7, 8)]
    (lora, *_) = adapters_of(family)
    plain: dict[str | None, torch.nn.Module] = {None: make_model(family)}
    plain |= {each.name: with_weights(model, each) for each in wholes}
    plain[lora.name] = with_peft(make_model(family), lora)
    async with serving(model, [*wholes, lora], max_requests=5) as engine:
        asked = await play_turns(engine, list(plain), turns=4, vocab=VOCAB, rules=RULES)
        if family != "lfm2":
            stats = engine.stats()
            assert stats["cached_prompt_tokens"] > 0.3 * stats["prompt_tokens"]
    assert_each_is_exact(asked, plain, "main@8")


async def test_model_gets_its_original_weights_back() -> None:
    model = make_model()
    own = [*model.parameters()]
    version = random_whole(model, "main@1", seed=1)
    async with serving(model, [version]) as engine:
        await asyncio.gather(*[ask(engine, RULES, adapter=name) for name in (None, "main@1")])
        await ask(engine, RULES, adapter="main@1")
        assert not any(mine is each for mine, each in zip(own, [*model.parameters()], strict=True))
        await engine.unload("main@1")
        with pytest.raises(ValueError, match="main@1"):
            await ask(engine, RULES, adapter="main@1")
        await engine.load(version)  # it gets a new number
        await ask(engine, RULES, adapter="main@1")
    assert all(mine is other for mine, other in zip(own, [*model.parameters()], strict=True))


async def test_version_of_another_shape_is_rejected() -> None:
    model = make_model()
    async with serving(model) as engine:
        with pytest.raises(ValueError, match=r"lm_head.weight is \(12, 32\), expected \(96, 32\)"):
            await engine.load(random_whole(tiny_model(vocab=12), "main@1", seed=0))
