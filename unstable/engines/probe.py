"""The start-up probe: proof that an engine really applies adapters, before a run rests on it.

Engines were seen to serve the base model in silence. Two random adapters, or models where all
weights are trained, and the base answer the same prompts; another scorer, the learner's own, then
says how likely each answer was under each of the three, and every answer must be as likely as the
engine said under its own adapter alone. What is measured against is the adapters' own effect, which
the scorer knows: no figure of any model.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save

from unstable.config import AdapterConfig, ModelConfig
from unstable.engines.base import Engine, SamplingRequest
from unstable.models.adapters import make_lora
from unstable.models.base import load_model
from unstable.models.shape import ModelShape, read_shape
from unstable.models.tensors import quietly
from unstable.types import Adapter, Completion, TokenSample

_PROMPTS = 2
_PROMPT_TOKENS = 12
_ANSWER_TOKENS = 6
_STRENGTH = 0.5  # of an adapter's products, relative to inputs of the same size
_SPREAD = 0.3  # of what is added to each of a model's weights, relative to its tensor's own
_CONTRAST = 3.0  # how many times as large what an adapter changes is as rounding, at least
_NOTHING = 1e-6  # nats; a scorer that applies no adapter repeats itself
_SEE = "learning goes on; watch learn/mismatch_kl, and see docs/engines.md"


class Bound(NamedTuple):
    """Nats that engine and scorer may differ by: the mean over all tokens, and each one."""

    mean: float
    most: float


BOUNDS = {"bfloat16": Bound(0.2, 1.0), "float32": Bound(0.001, 0.01)}
"""What is usual, by the dtype of the base weights. SmolLM2 has 0.03 to 0.11, at most 0.3, and
0.00001, 0.00002; under a wrong adapter its answers are 0.9 to 3.4 off. Others may have more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    """An engine's answer to a prompt."""

    prompt_ids: list[int]
    completion: Completion
    woken: bool = False  # asked after a sleep that the adapters were served through


class Probes(NamedTuple):
    """The base and the versions that an engine is asked under."""

    base: Adapter  # what makes the base of a scorer that always has trained weights
    versions: list[Adapter]


def probes(model: ModelConfig) -> Probes:
    """Two versions of the kind that is trained, far from the base and from each other."""
    if model.adapter == "none":
        return _whole_probes(model)
    shape = read_shape(model)
    return Probes(no_adapter(shape, model.adapter), probe_adapters(shape, model.adapter))


def _whole_probes(model: ModelConfig) -> Probes:
    """The base's weights as they are, and twice with noise, in `model.dtype`."""
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
    engine: Engine, adapters: Sequence[Adapter], vocabulary: int, *, sleeps: bool = False
) -> list[ProbeAnswer]:
    """The engine's answers under the base and each adapter, which it forgets again.

    With `sleeps` it is asked once more after a sleep, through which the adapters stay: engines have
    lost those that they held then (vLLM before 0.28, issue 53888).
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
    """The answers as a learner scores them."""
    return [
        TokenSample(prompt_ids=answer.prompt_ids, segments=(answer.completion,))
        for answer in answers
    ]


def check_probe(
    answers: Sequence[ProbeAnswer],
    scores: Mapping[str | None, Sequence[Sequence[float]]],
    bound: Bound,
) -> list[str]:
    """Doubts about the answers, a line each; raises `RuntimeError` where they are surely wrong.

    `scores` holds, by adapter (None: the base), the scorer's logprobs of every answer's tokens.
    Certain is that an adapter has no effect, or another's; that engine and scorer differ by more
    than `bound`, which is of other models, is a doubt.
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
    """The doubts about the answers under one adapter, by its name in lines; raises as above."""
    gaps = {name: np.abs(engine_N - scored_N) for name, scored_N in scored.items()}
    right_N = gaps.pop(adapter)
    right, most = float(right_N.mean()), float(right_N.max())
    other, wrong = min(((name, float(gap.mean())) for name, gap in gaps.items()), key=itemgetter(1))
    # What the nearest of the others changes at these tokens, of which the engine knows nothing.
    effect = min(float(np.abs(scored[adapter] - scored[name]).mean()) for name in gaps)
    if effect <= _NOTHING:
        raise RuntimeError(
            f"start-up probe: the learner finds answers under {asked} as likely under another "
            f"(they differ by {effect:.2g} a token), so it does not distinguish them"
        )
    differ = (
        f"start-up probe: the engine's logprobs under {asked} differ from the learner's by "
        f"{right:.4f} a token, {most:.4f} at most"
    )
    # Not a number, or infinite, is wrong as well.
    if not right < effect or wrong * _CONTRAST <= right:
        raise RuntimeError(
            f"{differ}; those under {_named(other)} by {wrong:.4f}, where {effect:.4f} is what an "
            "adapter changes, so it does not serve what is trained"
        )
    if right * _CONTRAST >= effect:
        return [f"{differ}, of {effect:.4f} that an adapter changes; {_SEE}"]
    if right > bound.mean or most > bound.most:
        return [f"{differ}, where {bound.mean} and {bound.most} are usual; {_SEE}"]
    return []
