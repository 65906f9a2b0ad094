"""vLLM with a base in 8 or 4 bits, on its CPU build: it serves what the learner computes."""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.vllm import Scorer, needs_vllm
from unstable.config import AdapterConfig, ModelConfig, parse
from unstable.engines.kinds import make_engine
from unstable.engines.probe import BOUNDS, ProbeAnswer, ask_probe, check_probe, probe_adapters
from unstable.engines.vllm.core import phases_of
from unstable.models.shape import read_shape
from unstable.types import Adapter

NEEDED = {"8bit": ("torchao",), "4bit": ("bitsandbytes", "vllm_bnb_plugin")}
Scores = Mapping[str | None, list[list[float]]]


def kind(name: str, dtype: str) -> object:
    absent = [each for each in NEEDED[name] if importlib.util.find_spec(each) is None]
    skip = pytest.mark.skipif(bool(absent), reason=f"not installed: {', '.join(absent)}")
    quarter = {"8bit": 1, "4bit": 3}[name]
    return pytest.param(name, dtype, marks=(skip, pytest.mark.tables("vllm", quarter)))


def scores_of(
    model: ModelConfig, answers: list[ProbeAnswer], adapters: list[Adapter]
) -> dict[str | None, list[list[float]]]:
    scorer = Scorer(model)
    scores: dict[str | None, list[list[float]]] = {None: scorer.score(answers, None)}
    return scores | {each.name: scorer.score(answers, each) for each in adapters}


def gap(answers: list[ProbeAnswer], scores: Scores) -> float:
    """Nats a token that the engine's logprobs differ by from those under the same adapter."""
    found = [
        np.abs(np.array(scores[answer.completion.adapter][index]) - answer.completion.logprobs)
        for index, answer in enumerate(answers)
    ]
    return float(np.concatenate(found).mean())


@needs_vllm
@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), [kind("8bit", "float32"), kind("4bit", "bfloat16")])
async def test_quantized_logprobs_match_learner(
    name: str, dtype: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    lora = AdapterConfig(rank=4, alpha=8)
    model = ModelConfig(dtype=dtype, quantize=name, adapter=lora)
    actors = {"engine": "vllm", "games_in_flight": 8, "max_loras": 2, "max_cpu_loras": 3}
    config = parse(
        {
            "model": model.model_dump(),
            "actors": {**actors, "enforce_eager": True},
            "sampling": {"max_tokens": 64, "max_prompt_tokens": 64},
        }
    )
    shape = read_shape(model)
    adapters = probe_adapters(shape, lora)
    engine, _ = await make_engine(config, tmp_path / "engine.log")
    capfd.readouterr()
    try:
        answers = await ask_probe(engine, adapters, shape.vocabulary)
    finally:
        await engine.close()
    started = phases_of((tmp_path / "engine.log").read_text(encoding="utf-8"))
    assert started["profiling, cache and warm-up, with graphs"] > 0
    assert "INFO" not in "".join(capfd.readouterr()), "only a start has messages of this process"
    quantized = scores_of(model, answers, adapters)
    assert check_probe(answers, quantized, BOUNDS[dtype]) == []
    plain = scores_of(ModelConfig(dtype=dtype, adapter=lora), answers, adapters)
    assert gap(answers, plain) > 2 * gap(answers, quantized)
