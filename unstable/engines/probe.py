"""The start-up probe: proves that an engine applies adapters, before a run relies on it.

Some engines have silently served the base model. The probe sends the same prompts to the base and
to two random adapters (or whole models with noise, if all weights are trained). A second scorer,
the learner's, then computes each answer's likelihood under each of the three. Each answer must
match the engine's logprobs under its own adapter alone. The yardstick is the adapters' own effect,
which the scorer knows, so no threshold depends on the model.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unstable.config import AdapterConfig, ModelConfig
from unstable.engines.base import Engine, SamplingRequest
from unstable.models.adapters import make_lora
from unstable.models.base import load_model
from unstable.models.shape import read_shape
from unstable.models.sizes import ModelShape
from unstable.models.tensors import quietly
from unstable.types import Adapter, Completion, TokenSample

_PROMPTS = 2
_PROMPT_TOKENS = 12
_ANSWER_TOKENS = 6
_STRENGTH = 0.5  # size of an adapter's products relative to its inputs
_SPREAD = 0.3  # size of the noise relative to the root mean square of the tensor
_CONTRAST = 3.0  # minimum ratio of an adapter's effect to rounding errors
_NOTHING = 1e-6  # nats; equal scores mean that the scorer applies no adapter
_SEE = "training continues; watch learn/mismatch_kl, see docs/engines.md"


class Bound(NamedTuple):
    """Nats by which engine and scorer may differ: the mean over all tokens, and the maximum."""

    mean: float
    most: float


BOUNDS = {"bfloat16": Bound(0.2, 1.0), "float32": Bound(0.001, 0.01)}
"""Usual differences by dtype of the base weights. SmolLM2 has a mean of 0.03 to 0.11, at most 0.3
(bfloat16), and 0.00001, 0.00002 (float32); a wrong adapter differs by 0.9 to 3.4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    """An engine's completion of a probe prompt."""

    prompt_ids: list[int]
    completion: Completion
    woken: bool = False  # sampled after a sleep during which the adapters stayed loaded


class Probes(NamedTuple):
    """The base and the versions that the probe compares."""

    base: Adapter  # for a scorer that always applies trained weights
    versions: list[Adapter]


def probes(model: ModelConfig) -> Probes:
    """Return the base and two versions of the trained kind, far from it and from each other."""
    if model.adapter == "none":
        return _whole_probes(model)
    shape = read_shape(model)
    base = _adapter(shape, model.adapter, number=2, strength=0.0)
    return Probes(base, probe_adapters(shape, model.adapter))


def _whole_probes(model: ModelConfig) -> Probes:
    """Return the base's weights unchanged, and two copies with noise, in `model.dtype`."""
    import torch
    from safetensors.torch import save

    with quietly():
        weights = {name: each.contiguous() for name, each in load_model(model).named_parameters()}

    def noisy(number: int) -> Adapter:
        generator = torch.Generator().manual_seed(number)
        tensors = {}
        for name, weight in weights.items():
            noise = torch.randn(weight.shape, generator=generator)
            scale = weight.float().square().mean().sqrt()
            tensors[name] = (weight + _SPREAD * scale * noise).to(weight.dtype)
        return Adapter(name=f"probe@{number}", weights=save(tensors), config={})

    base = Adapter(name="probe@2", weights=save(weights), config={})
    return Probes(base, [noisy(number) for number in range(2)])


def probe_adapters(shape: ModelShape, config: AdapterConfig) -> list[Adapter]:
    """Return two adapters of the trained adapter's size with random products far from zero."""
    return [_adapter(shape, config, number, _STRENGTH) for number in range(2)]


def _adapter(shape: ModelShape, config: AdapterConfig, number: int, strength: float) -> Adapter:
    import torch

    generator = torch.Generator().manual_seed(number)
    scale = strength * config.rank**0.5 / config.alpha
    pairs = {}
    for linear in shape.lora_linears(config.targets):
        a = torch.randn(config.rank, linear.inputs, generator=generator)
        b = torch.randn(linear.outputs, config.rank, generator=generator)
        pairs[linear.name] = (a / linear.inputs**0.5, b * scale)
    return make_lora(f"probe@{number}", pairs, rank=config.rank, alpha=config.alpha)


async def ask_probe(
    engine: Engine, adapters: Sequence[Adapter], vocabulary: int, *, sleeps: bool = False
) -> list[ProbeAnswer]:
    """Return the engine's answers under the base and each adapter; unloads the adapters afterwards.

    With `sleeps` the probe repeats its requests after a sleep and keeps the adapters loaded
    meanwhile: vLLM before 0.28 lost its loaded adapters then (issue 53888).
    """
    chance = np.random.default_rng(0)
    prompts = chance.integers(vocabulary, size=(_PROMPTS, _PROMPT_TOKENS)).tolist()

    async def ask(name: str | None, seed: int, woken: bool) -> ProbeAnswer:
        ids, most = prompts[seed], _ANSWER_TOKENS
        request = SamplingRequest(
            prompt_ids=ids, adapter=name, temperature=1.0, max_tokens=most, seed=seed
        )
        completion = await engine.generate(request)
        return ProbeAnswer(prompt_ids=ids, completion=completion, woken=woken)

    async def ask_all(woken: bool) -> list[ProbeAnswer]:
        names = (None, *(adapter.name for adapter in adapters))
        asked = [ask(name, seed, woken) for name in names for seed in range(len(prompts))]
        return await asyncio.gather(*asked)

    for adapter in adapters:
        await engine.load(adapter)
    answers = await ask_all(woken=False)
    if sleeps:
        await engine.sleep()
        await engine.wake()
        await engine.forget_prefixes()
        answers += await ask_all(woken=True)
    for adapter in adapters:
        await engine.unload(adapter.name)
    return answers


def probe_samples(answers: Sequence[ProbeAnswer]) -> list[TokenSample]:
    """Convert the answers to samples that the learner can score."""
    return [
        TokenSample(prompt_ids=answer.prompt_ids, segments=(answer.completion,))
        for answer in answers
    ]


def check_probe(
    answers: Sequence[ProbeAnswer],
    scores: Mapping[str | None, Sequence[Sequence[float]]],
    bound: Bound,
) -> list[str]:
    """Return doubts about the answers, one line per doubt; raises `RuntimeError` for sure errors.

    `scores` maps an adapter (None: the base) to the scorer's logprobs of every answer's tokens. It
    is a sure error if an adapter has no effect, or another adapter's effect. It is a doubt if
    engine and scorer differ by more than `bound`, which was measured on other models.
    """
    doubts = []
    for woken in sorted({answer.woken for answer in answers}):
        for adapter in scores:
            own = [
                index
                for index, answer in enumerate(answers)
                if (answer.completion.adapter, answer.woken) == (adapter, woken)
            ]
            engine = np.concatenate([answers[index].completion.logprobs for index in own])
            scored = {
                name: np.concatenate([logprobs[index] for index in own])
                for name, logprobs in scores.items()
            }
            when = " after a sleep" if woken else ""
            doubts += _judge(adapter, engine, scored, bound, f"{_named(adapter)}{when}")
    return doubts


def _named(adapter: str | None) -> str:
    return "the base model" if adapter is None else "an adapter"


def _judge(
    adapter: str | None,
    engine_N: NDArray[np.float64],
    scored: Mapping[str | None, NDArray[np.float64]],
    bound: Bound,
    asked: str,
) -> list[str]:
    """Return doubts about the answers under one adapter; raises as `check_probe` does."""
    gaps = {name: np.abs(engine_N - scored_N) for name, scored_N in scored.items()}
    right_N = gaps.pop(adapter)
    right, most = float(right_N.mean()), float(right_N.max())
    other, wrong = min(((name, float(gap.mean())) for name, gap in gaps.items()), key=itemgetter(1))
    # Effect of the nearest other adapter on these tokens, according to the scorer.
    effect = min(float(np.abs(scored[adapter] - scored[name]).mean()) for name in gaps)
    if effect <= _NOTHING:
        raise RuntimeError(
            f"start-up probe: the learner does not distinguish {asked} from another adapter: its "
            f"logprobs under both differ by only {effect:.2g} per token"
        )
    differ = (
        f"start-up probe: the engine's logprobs under {asked} differ from the learner's by "
        f"{right:.4f} per token, maximum {most:.4f}"
    )
    # `not <` also catches NaN and infinity.
    if not right < effect or wrong * _CONTRAST <= right:
        raise RuntimeError(
            f"{differ}, and from those under {_named(other)} by {wrong:.4f}; an adapter changes "
            f"them by {effect:.4f}, so the engine does not serve the trained weights"
        )
    if right * _CONTRAST >= effect:
        return [f"{differ}, but an adapter changes only {effect:.4f}; {_SEE}"]
    if right > bound.mean or most > bound.most:
        return [f"{differ}; usual are {bound.mean} and {bound.most}; {_SEE}"]
    return []
