"""The start-up probe: proof that an engine really applies adapters, before a run rests on it.

Engines were seen to serve the base model in silence. Two random adapters and the base answer the
same prompts; another scorer, the learner's own, then says how likely each answer was under each of
the three, and every answer must be as likely as the engine said under its own adapter alone.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from unstable.config import AdapterConfig
from unstable.engines.base import Engine
from unstable.models.adapters import make_lora
from unstable.models.shape import ModelShape
from unstable.types import Adapter, Completion, TokenSample

_PROMPTS = 2
_PROMPT_TOKENS = 12
_ANSWER_TOKENS = 6
_STRENGTH = 0.5  # of an adapter's products, relative to inputs of the same size
_CONTRAST = 3.0  # how many times as large the gaps under a wrong adapter are, at least


class Bound(NamedTuple):
    """Nats that engine and scorer may differ by: the mean over all tokens, and each one."""

    mean: float
    most: float


BOUNDS = {"bfloat16": Bound(0.2, 1.0), "float32": Bound(0.001, 0.01)}
"""By the dtype of the base weights. SmolLM2 has 0.03 to 0.11, at most 0.3, and 0.00001, 0.00002;
under a wrong adapter its answers are 0.9 to 3.4 off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    """What an engine answered to a prompt."""

    prompt_ids: list[int]
    completion: Completion


def probe_adapters(shape: ModelShape, config: AdapterConfig) -> list[Adapter]:
    """Two adapters of the trained one's size whose products are random and far from zero."""
    return [_adapter(shape, config, number, _STRENGTH) for number in range(2)]


def no_adapter(shape: ModelShape, config: AdapterConfig) -> Adapter:
    """One that changes nothing: the base, for a scorer that always wears an adapter."""
    return _adapter(shape, config, 2, 0.0)


def _adapter(shape: ModelShape, config: AdapterConfig, number: int, strength: float) -> Adapter:
    generator = torch.Generator().manual_seed(number)
    scale = strength * config.rank**0.5 / config.alpha
    pairs = {}
    for linear in shape.lora_linears(config.targets):
        a = torch.randn(config.rank, linear.inputs, generator=generator)
        b = torch.randn(linear.outputs, config.rank, generator=generator)
        pairs[linear.name] = (a / linear.inputs**0.5, b * scale)
    return make_lora(f"probe@{number}", pairs, rank=config.rank, alpha=config.alpha)


async def ask_probe(
    engine: Engine, adapters: Sequence[Adapter], vocabulary: int
) -> list[ProbeAnswer]:
    """The engine's answers under the base and each adapter, which it forgets again."""
    chance = np.random.default_rng(0)
    prompts = chance.integers(vocabulary, size=(_PROMPTS, _PROMPT_TOKENS)).tolist()

    async def ask(name: str | None, seed: int) -> ProbeAnswer:
        completion = await engine.generate(
            prompts[seed], adapter=name, temperature=1.0, max_tokens=_ANSWER_TOKENS, seed=seed
        )
        return ProbeAnswer(prompt_ids=prompts[seed], completion=completion)

    for adapter in adapters:
        await engine.load(adapter)
    names = (None, *(adapter.name for adapter in adapters))
    asked = [ask(name, seed) for name in names for seed in range(len(prompts))]
    answers = await asyncio.gather(*asked)
    for adapter in adapters:
        await engine.unload(adapter.name)
    return answers


def probe_samples(answers: Sequence[ProbeAnswer]) -> list[TokenSample]:
    """The answers as a learner scores them."""
    return [
        TokenSample(prompt_ids=answer.prompt_ids, segments=(answer.completion,))
        for answer in answers
    ]


def check_probe(
    answers: Sequence[ProbeAnswer],
    scores: Mapping[str | None, Sequence[Sequence[float]]],
    bound: Bound,
) -> None:
    """Raise `RuntimeError` where the engine's logprobs are not those of its answers' adapters.

    `scores` holds, by adapter (None: the base), the scorer's logprobs of every answer's tokens.
    """
    for adapter in scores:
        own = [i for i, answer in enumerate(answers) if answer.completion.adapter == adapter]
        engine = np.concatenate([answers[i].completion.logprobs for i in own])
        gaps = {
            scored: np.abs(engine - np.concatenate([logprobs[i] for i in own]))
            for scored, logprobs in scores.items()
        }
        name = "the base model" if adapter is None else "an adapter"
        right = gaps.pop(adapter)
        if not (right.mean() <= bound.mean and right.max() <= bound.most):
            raise RuntimeError(
                f"start-up probe: the engine's logprobs under {name} differ from the learner's by "
                f"{right.mean():.4f} a token, {right.max():.4f} at most; {bound.mean} and "
                f"{bound.most} are allowed, so it does not serve what is trained"
            )
        wrong = min(gap.mean() for gap in gaps.values())
        if wrong <= _CONTRAST * right.mean():
            raise RuntimeError(
                f"start-up probe: the learner finds answers under {name} as likely under another "
                f"(gaps of {right.mean():.4f} and {wrong:.4f}), so it does not distinguish them"
            )
