"""`Engine.score` in bfloat16 against a plain forward in bfloat16, by the start-up probe's bounds.

Here the embedded engine's on the processor; vLLM's on a GPU, with `-m gpu`.
"""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unstable.config import AdapterConfig, ModelConfig, parse
from unstable.engines.base import Engine
from unstable.engines.kinds import make_engine
from unstable.engines.probe import BOUNDS, probe_adapters
from unstable.learners.model.trained import TrainedLora
from unstable.models.adapters import attach_lora
from unstable.models.base import load_model
from unstable.models.shape import read_shape
from unstable.types import Adapter

MODEL = ModelConfig(dtype="bfloat16", adapter=AdapterConfig(rank=4, alpha=8))
SHAPE = read_shape(MODEL)
PROMPT = [int(i) for i in np.random.default_rng(0).integers(100, SHAPE.vocabulary, 40)]
CONTINUATIONS = [[1234, 40, 30], [1234, 41, 7], [777], [40] * 6]


async def serving(kind: str, folder: Path) -> Engine:
    """An engine of the run's own kind, with small bounds."""
    actors = {"engine": kind, "games_in_flight": 8, "max_loras": 2, "max_cpu_loras": 3}
    on_gpu = {"gpu_memory": 0.4, "enforce_eager": True} if kind == "vllm" else {}
    sampling = {"max_tokens": 16, "max_prompt_tokens": 64}
    config: dict[str, Any] = {"actors": actors | on_gpu, "sampling": sampling}
    engine, _ = await make_engine(parse({"model": MODEL.model_dump(), **config}), folder / "log")
    return engine


@torch.no_grad()
def plainly(
    device: str, adapters: dict[str | None, Adapter | None]
) -> dict[str | None, np.ndarray]:
    """Log-probabilities of all tokens of the continuations, prompt and answer put through whole."""
    model = attach_lora(load_model(MODEL), MODEL.lora, seed=0).to(device)  # B is zero
    found = {}
    for name, adapter in adapters.items():
        if adapter is not None:
            TrainedLora(model).load(adapter)
        logprobs: list[float] = []
        for ids in CONTINUATIONS:
            logits = model(torch.tensor([[*PROMPT, *ids]], device=device), use_cache=False).logits
            chances = logits[0, len(PROMPT) - 1 : -1].float().log_softmax(-1)
            logprobs += chances[range(len(ids)), ids].tolist()
        found[name] = np.array(logprobs)
    return found


async def assert_scores_are_plain(kind: str, device: str, folder: Path) -> None:
    first, second = probe_adapters(SHAPE, MODEL.lora)
    adapters: dict[str | None, Adapter | None] = {None: None}
    adapters |= {first.name: first, second.name: second}
    engine = await serving(kind, folder)
    try:
        for adapter in (first, second):
            await engine.load(adapter)
        asked = (engine.score(PROMPT, CONTINUATIONS, adapter=name) for name in adapters)
        scores = await asyncio.gather(*asked)
    finally:
        await engine.close()
    expected = plainly(device, adapters)
    for name, scored in zip(adapters, scores, strict=True):
        ours = np.concatenate(scored)
        gaps = {other: np.abs(ours - logprobs) for other, logprobs in expected.items()}
        right = gaps.pop(name)
        print(f"{kind} on {device}, {name}: {right.mean():.4f} on average, {right.max():.4f} most")
        assert right.mean() <= BOUNDS["bfloat16"].mean and right.max() <= BOUNDS["bfloat16"].most
        assert min(gap.mean() for gap in gaps.values()) > 3 * right.mean()


@pytest.mark.asyncio
async def test_embedded_scores_on_cpu_match_plain_forward(tmp_path: Path) -> None:
    await assert_scores_are_plain("embedded", "cpu", tmp_path)


@pytest.mark.gpu
@pytest.mark.asyncio
async def test_vllm_scores_on_gpu_match_plain_forward(tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="vLLM is not installed; pip install -e '.[gpu]'")
    await assert_scores_are_plain("vllm", "cuda", tmp_path)
