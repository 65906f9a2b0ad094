"""Hourly throughput of a plan, for simulated machines."""

from typing import Any

import pytest

from bench.capacity import (
    CARDS,
    DRIVER_S,
    NETWORK,
    Capacity,
    capacity,
    card_like,
    machine_named,
    main,
    nodes_named,
    played_turns,
)
from tests.helpers.machines import QWEN
from tests.helpers.mistakes import refused
from tests.helpers.rows import every_row
from unstable.config import load
from unstable.engines.kinds import NEEDS
from unstable.planning.placing import games_at_once
from unstable.planning.plan import plan


def at(nodes: int, gpus: int, **options: Any) -> Capacity:
    config = load("default", {"model.name": str(QWEN), **options})
    machines = nodes_named(f"{gpus}xh100", nodes)
    found = capacity(config, plan(config, machines, NEEDS), machines)
    assert found is not None
    return found


def test_capacity_grows_with_gpus_until_the_driver_limits() -> None:
    assert at(1, 1).updates_h < at(1, 2).updates_h < at(1, 8).updates_h
    wide = {"learner.batch_size": 8192}
    assert at(1, 8, **wide).games_s < at(4, 8, **wide).games_s
    small = {"model.name": "smollm2-135m", "sampling.max_prompt_tokens": 32}
    fast = at(8, 8, **small, **{"learner.batch_size": 65_536, "sampling.max_tokens": 1})
    assert fast.bound == "the driver" and fast.driver == 1.0
    assert fast.games_s == pytest.approx(1 / DRIVER_S)
    assert at(1, 2).driver < 0.1


def test_adapter_is_sent_once_per_node_and_cpus_have_no_capacity() -> None:
    one, four = at(1, 8), at(4, 8)
    assert one.publish_bytes == four.publish_bytes
    assert one.publish_s == 0
    assert four.publish_s == pytest.approx(3 * four.publish_bytes / NETWORK)
    config = load("default", {"actors.engine": "embedded"})
    machines = nodes_named("h100", 2)
    assert capacity(config, plan(config, machines, NEEDS), machines) is None


def test_command_prints_plan_and_capacity(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--machine", "8xh100", "--nodes", "4", "--model.name", str(QWEN)])
    said = capsys.readouterr().out
    for words in ("4 nodes, 512 cores", "vllm engine", "capacity", "updates/h, bound by"):
        assert words in said
    with pytest.raises(SystemExit, match="error: --machine = 'z80': write .COUNTx.CARD"):
        main(["--machine", "z80"])


@every_row(
    "name, cards, cores",
    ("h200", ["NVIDIA H200"], 16),
    ("8xH100", ["NVIDIA H100"] * 8, 128),
    ("4x24gb", ["a card of 24 GB"] * 4, 32),
    ("1xl4", ["NVIDIA L4"], 8),
)
def test_machine_name_determines_its_gpus(name: str, cards: list[str], cores: int) -> None:
    there = machine_named(name)
    assert [gpu.name for gpu in there.usable_gpus] == cards
    assert [gpu.id for gpu in there.gpus] == [str(index) for index in range(len(cards))]
    assert there.cores == cores and there.has_vllm
    assert there.cuda_problem is None and there.build_problem is None


@every_row("name", "8xh10", "h200x8", "0xh100", "0gb", "", "two cards", "-1")
def test_invalid_machine_names_are_rejected(name: str) -> None:
    refused("--machine = ", machine_named, name)


def test_played_turns_include_untrained_seats() -> None:
    """Engines also answer past versions' seats, and one seat of evaluations against a program."""
    one, none = {"learner.batch_size": 100, "opponents.fixed": []}, {"eval.every": 0}
    only = {"self": 1.0, "past": 0.0, "fixed": 0.0}
    assert played_turns(load("default", one | none | {"opponents.draw": only})) == 100
    half = load("default", one | none | {"opponents.draw": only | {"self": 0.5, "past": 0.5}})
    assert played_turns(half) == pytest.approx(100 / 0.75)
    assert games_at_once(half, sync=True) == pytest.approx(100 / 8 / 0.75)
    options = {"eval": {"every": 4, "games": 16, "opponents": ["random"], "temperature": [1.0]}}
    judged = load("default", one | options | {"opponents.draw": only})
    assert len(judged.games) == 1 and played_turns(judged) == 100 + 16 * 8 / 2 / 4


def test_gpu_is_matched_by_name_or_memory() -> None:
    assert card_like("NVIDIA H100 80GB HBM3", 85 * 10**9) is CARDS["h100"]
    assert card_like("NVIDIA A100-SXM4-80GB", 85 * 10**9) is CARDS["a100"]
    assert card_like("NVIDIA L40S", 48 * 10**9) is CARDS["l40s"]
    assert card_like("NVIDIA GeForce RTX 3090", 25 * 10**9) is CARDS["rtx3090"]
    assert card_like("another", 24 * 10**9) is CARDS["rtx3090"]
    assert card_like("another", 141 * 10**9) is CARDS["h200"]
