"""vLLM, real, on a processor: versions that are whole models, one in place at a time."""

import asyncio
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from tests.helpers.families import save_family
from tests.helpers.recorded_versions import SIZES
from tests.helpers.vllm import needs_vllm
from unstable.config import RunConfig, parse
from unstable.engines.make import make_engine
from unstable.models.base import load_model
from unstable.models.merge import replace_weights
from unstable.types import Adapter

pytestmark = needs_vllm
NATS = 1e-3
PROMPT = [*range(5, 75)]


def config_of(model: Path, *, compiled: bool) -> RunConfig:
    return parse(
        {
            "model": {"name": str(model), "dtype": "float32", "adapter": "none"},
            "actors": {
                **{"engine": "vllm", "games_in_flight": 8, "max_loras": 1, "max_cpu_loras": 2},
                "enforce_eager": not compiled,
            },
            "sampling": {"max_tokens": 8, "max_prompt_tokens": 480},
        }
    )


def noisy(config: RunConfig, name: str, seed: int) -> Adapter:
    """The base's weights with noise."""
    torch.manual_seed(seed)
    weights = {
        key: value + 0.02 * torch.randn_like(value)
        for key, value in load_model(config.model).named_parameters()
    }
    return Adapter(name=name, weights=save(weights), config={})


def expected(config: RunConfig, version: Adapter | None, next_ids: list[int]) -> list[float]:
    model = load_model(config.model)
    if version is not None:
        replace_weights(model, version)
    with torch.no_grad():
        logits = model(torch.tensor([[*PROMPT, *next_ids]])).logits[0, len(PROMPT) - 1 : -1]
    scores = logits.float().log_softmax(-1)
    return [float(scores[place, token]) for place, token in enumerate(next_ids)]


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
async def test_each_request_is_answered_by_its_own_version(kind: str, tmp_path: Path) -> None:
    """Of base and two versions at once, and once both are gone; Gemma's head is tied."""
    save_family(kind, tmp_path / "model", **SIZES)
    config = config_of(tmp_path / "model", compiled=kind == "llama")
    versions = {name: noisy(config, name, seed) for seed, name in enumerate(["main@1", "main@2"])}
    named: dict[str | None, Adapter | None] = {None: None}
    named.update(versions)
    next_ids = [11, 40, 3]
    engine, _ = await make_engine(config, tmp_path / "engine.log")
    try:
        for version in versions.values():
            await engine.load(version)
        with pytest.raises(ValueError, match="'main@1' is there already"):
            await engine.load(versions["main@1"])
        wrong = Adapter(name="wrong", weights=save({"x": torch.ones(2)}), config={})
        with pytest.raises(ValueError, match="'wrong' does not fit the base"):
            await engine.load(wrong)
        asked = [*named] * 3
        scored = await asyncio.gather(
            *(engine.score(PROMPT, [next_ids], adapter=name) for name in asked)
        )
        for name, (found,) in zip(asked, scored, strict=True):
            assert found == pytest.approx(expected(config, named[name], next_ids), abs=NATS)
        sampled = await asyncio.gather(
            *(
                engine.generate(PROMPT, adapter=name, temperature=1.0, max_tokens=4, seed=seed)
                for seed, name in enumerate(asked)
            )
        )
        for name, answer in zip(asked, sampled, strict=True):
            assert answer.adapter == name
            of_name = expected(config, named[name], answer.token_ids)
            assert answer.logprobs == pytest.approx(of_name, abs=NATS)
        # In the cache under each version's own name: only the last block's part is computed anew.
        assert engine.stats()["cached_prompt_tokens"] >= len(asked) * 64
        for name in versions:
            await engine.unload(name)
        with pytest.raises(ValueError, match="'main@1' is not there"):
            await engine.score(PROMPT, [next_ids], adapter="main@1")
        (found,) = await engine.score(PROMPT, [next_ids], adapter=None)
        assert found == pytest.approx(expected(config, None, next_ids), abs=NATS)
    finally:
        await engine.close()
