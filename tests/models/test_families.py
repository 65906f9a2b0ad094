"""Every family of causal models: engine and learner match the model's own forward pass."""

import asyncio
import itertools
import re
from pathlib import Path

import pytest
import torch
from peft import PeftModel, set_peft_model_state_dict
from safetensors.torch import load
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from tests.helpers.builders import asking
from tests.helpers.families import FAMILIES, VOCAB, make_family, save_family
from tests.helpers.learners import plain_logprobs
from tests.helpers.loop import make_context
from tests.helpers.models import random_adapter
from tests.helpers.recorded_versions import KINDS, parity, recorded, run_of
from tests.helpers.rows import every_row
from tests.helpers.tables import table
from unstable.config import AdapterConfig, LearnerConfig, ModelConfig
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.learners.model.load import load_policy
from unstable.learners.ranks import ALONE
from unstable.loop.train import train
from unstable.models.adapters import attach_lora, read_adapter
from unstable.models.base import load_model
from unstable.models.merge import write_merged
from unstable.models.support import PACKED
from unstable.records.reading import read_rows
from unstable.types import Adapter, Completion, Segment, TokenSample

LOGPROBS, GRADIENTS = 1e-4, 1e-4
LORA = AdapterConfig(rank=2, alpha=4)
PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def plain(folder: Path, adapter: Adapter | None) -> torch.nn.Module:
    """The model as loaded by transformers and PEFT, with a trainable adapter."""
    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    model = model.eval().requires_grad_(False)
    if adapter is None:
        return model
    wrapped = attach_lora(model, LORA, 0)
    set_peft_model_state_dict(wrapped, load(adapter.weights))
    return wrapped.eval()


def make_samples() -> list[TokenSample]:
    """Unlike lengths, two with a long prefix in common; all are longer than a window."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(4, VOCAB, (40,), generator=generator).tolist()
    parts = [(ids[:12], ids[12:15]), (ids[:10] + ids[20:24], ids[24:29]), (ids[30:39], ids[39:])]
    return [
        TokenSample(prompt_ids=prompt, segments=(Segment(token_ids=answer),))
        for prompt, answer in parts
    ]


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm().clamp_min(1e-12))


def check_learner(folder: Path, adapter: Adapter, samples: list[TokenSample]) -> None:
    reference = plain(folder, adapter)
    expected = torch.cat([plain_logprobs(reference, sample) for sample in samples])
    weights = torch.linspace(-1, 2, len(expected))
    (expected * weights).sum().backward()
    trained = [each for each in reference.parameters() if each.requires_grad]

    config = ModelConfig(name=str(folder), dtype="float32", adapter=LORA)
    policy = load_policy(config, LearnerConfig(), 0, adapter, ALONE)
    found = policy(policy.inputs(samples)).logprobs_N
    assert (found - expected).abs().max() <= LOGPROBS
    (found * weights).sum().backward()
    mine = policy.trained.parameters
    assert [each.shape for each in mine] == [each.shape for each in trained]
    gradients = [torch.cat([_gradient(each) for each in some]) for some in (mine, trained)]
    assert gradients[1].norm() > 0
    assert relative(*gradients) <= GRADIENTS


def _gradient(parameter: torch.nn.Parameter) -> Tensor:
    """Return the flat gradient; zeros for experts without tokens."""
    return torch.zeros_like(parameter).ravel() if parameter.grad is None else parameter.grad.ravel()


def check_engine(folder: Path, adapter: Adapter, samples: list[TokenSample]) -> None:
    config = ModelConfig(name=str(folder), dtype="float32", adapter=LORA)
    names = [adapter.name, None, adapter.name]

    async def ask() -> tuple[list[Completion], list[list[float]]]:
        engine = EmbeddedEngine(load_model(config), [], max_requests=4, max_length=64)
        await engine.load(adapter)
        answers = [
            engine.generate(asking(sample.prompt_ids, adapter=name, seed=seed))
            for seed, (sample, name) in enumerate(zip(samples, names, strict=True))
        ]
        answered = await asyncio.gather(*answers)
        first = samples[0]
        scored = await engine.score(first.prompt_ids, [first.token_ids], adapter=adapter.name)
        await engine.close()
        return answered, scored

    answered, ((*scored,),) = asyncio.run(ask())
    models = {adapter.name: plain(folder, adapter), None: plain(folder, None)}
    with torch.no_grad():
        for sample, name, answer in zip(samples, names, answered, strict=True):
            segment = Segment(token_ids=answer.token_ids)
            whole = TokenSample(prompt_ids=sample.prompt_ids, segments=(segment,))
            expected = plain_logprobs(models[name], whole)
            assert (torch.tensor(answer.logprobs) - expected).abs().max() <= LOGPROBS
        expected = plain_logprobs(models[adapter.name], samples[0])
    assert (torch.tensor(scored) - expected).abs().max() <= LOGPROBS


async def check_run(folder: Path, run_dir: Path) -> None:
    """Run one update; check that scores match the sampled ones and that a gradient results."""
    context = make_context(
        folder,
        run_dir,
        buffer={"rewards": [{"term": f"{parity.__module__}:parity"}]},
        learner={"batch_size": 8, "learning_rate": 1e-3},
        eval={"every": 0},
        loop={"mode": "sync", "steps": 1},
    )
    assert await train(context) == "all updates made"
    row = read_rows(context.folder.metrics)[-1]
    assert abs(row["learn/mismatch_kl"]) < LOGPROBS
    assert row["learn/grad_norm"] > 0


CORE = {
    "llama": "packed",
    "qwen2": "biases, tied embeddings",
    "qwen3": "normalized queries and keys",
    "gemma3_text": "sliding windows, two rotary bases",
    "gpt2": "learned positions, transposed weights",
    "gpt_oss": "attention sinks, experts",
    "deepseek_v3": "latent attention, grouped experts",
    "qwen3_moe": "experts",
    "phi3": "fused projections",
    "gemma4_text": "padded: layers that share keys",
    "mamba2": "padded: a state-space model",
    "qwen3_next": "padded: linear attention and a convolution",
    "bloom": "padded: biases by distance",
}
"""One family per path and kind of layer."""


@pytest.mark.parametrize("kind", table("families", sorted(FAMILIES), CORE))
async def test_family_is_served_scored_and_trained_exactly(kind: str, tmp_path: Path) -> None:
    folder = save_family(kind, tmp_path / "model")
    adapter = random_adapter(make_family(kind), "main@1", seed=1, rank=LORA.rank)
    samples = make_samples()
    check_learner(folder, adapter, samples)
    await asyncio.to_thread(check_engine, folder, adapter, samples)
    await check_run(folder, tmp_path / "run")


@pytest.mark.parametrize(
    ("kind", "whole"),
    table(
        "families",
        [*itertools.product(KINDS, (False, True))],
        [("gemma3_text", False), ("qwen3", True)],
    ),
)
async def test_peft_and_transformers_reproduce_recorded_logprobs(kind, whole, tmp_path):
    """PEFT loads a LoRA's checkpoint, transformers a whole model's export."""
    folder = await run_of(kind, tmp_path, **({"adapter": "none"} if whole else {}))
    if whole:
        version = read_adapter(folder.checkpoint(1), "main@1")
        model = ModelConfig(name=str(tmp_path / "model"), dtype="float32", adapter="none")
        write_merged(model, version, tmp_path / "exported")
    base = tmp_path / ("exported" if whole else "model")
    loaded = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32).eval()
    if not whole:
        loaded = PeftModel.from_pretrained(loaded, folder.checkpoint(1)).eval()
    with torch.no_grad():
        for turn in recorded(folder, 1):
            segment = Segment(token_ids=turn.token_ids)
            sample = TokenSample(prompt_ids=turn.prompt_ids, segments=(segment,))
            found = plain_logprobs(loaded, sample).tolist()
            assert found == pytest.approx(turn.logprobs, abs=LOGPROBS)


@every_row("kind, attention", ("gemma2", "eager"), ("llama", "sdpa"))
def test_attention_soft_capping_is_applied(kind: str, attention: str, tmp_path: Path) -> None:
    """transformers' sdpa would silently ignore the cap."""
    model = load_model(ModelConfig(name=str(save_family(kind, tmp_path)), dtype="float32"))
    assert model.config._attn_implementation == attention


def test_documented_families_match_support() -> None:
    page = PAGE.read_text(encoding="utf-8")
    lists = re.findall(r"^- \*\*(packed|padded), [^:]*:\*\*(.*?)(?=^- |\Z)", page, re.M | re.S)
    rows = [(kind, path) for path, text in lists for kind in re.findall(r"`(\w+)`", text)]
    texts = {kind: AutoConfig.for_model(kind).get_text_config() for kind in FAMILIES}
    paths = {
        kind: "packed" if text.model_type in PACKED else "padded" for kind, text in texts.items()
    }
    assert len(rows) == len(paths) and dict(rows) == paths
