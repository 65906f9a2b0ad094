"""Numbers of cards that learn and play, on simulated machines."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bench.capacity import machine_named
from tests.helpers.rows import every_row
from unstable.cli import parse_options
from unstable.config import ConfigError, load
from unstable.engines.kinds import NEEDS
from unstable.planning.case import PLANNED, VLLM_GAMES, smallest
from unstable.planning.plan import Plan, plan
from unstable.planning.resolve import resolve

QWEN = "Qwen/Qwen3-1.7B"


def planned(there: str, model: str, request_tokens: Any = None, **options: Any) -> Plan:
    config = load("qwen3_24gb", {"model.name": model} | options)
    return plan(config, [machine_named(there)], NEEDS, request_tokens=request_tokens)


@every_row(
    "there, actors, learners",
    ("8xh100", 4, 4),
    ("5xh100", 3, 2),
    ("3xh100", 2, 1),
    ("2xh100", 1, 1),
    ("h200", 1, 1),
)
def test_about_half_of_the_gpus_learn(there: str, actors: int, learners: int) -> None:
    chosen = planned(there, "Qwen/Qwen3-8B")
    assert (len(chosen.actors), len(chosen.learners)) == (actors, learners)


def test_configured_counts_stay_and_ranks_shard_large_bases() -> None:
    given = planned("8xh100", "Qwen/Qwen3-8B", **{"actors.num": 7, "learner.num": 1})
    assert (len(given.actors), len(given.learners)) == (7, 1)
    rest = planned("8xh100", "Qwen/Qwen3-8B", **{"actors.num": 6})
    assert (len(rest.actors), len(rest.learners)) == (6, 2)
    config = load("qwen3_24gb", {"model.name": "Qwen/Qwen3-8B"})
    chosen = planned("8xh100", "Qwen/Qwen3-8B")
    assert resolve(config, chosen, "fresh").learner.num == len(chosen.learners)
    # Numbers of ranks that do not fit are not chosen.
    chosen = planned("4x24gb", "Qwen/Qwen3-8B", **{"learner.parallel": "fsdp"})
    assert len(chosen.learners) >= 2


def test_measured_lengths_set_games_in_flight() -> None:
    usual, long, huge = (planned("4x24gb", QWEN, request_tokens=n) for n in (None, 900, 1e6))
    cached = int(re.findall(r"([\d,]+) cached tokens", usual.text())[0].replace(",", ""))
    assert usual.games_in_flight == cached // 512
    assert huge.games_in_flight < long.games_in_flight < usual.games_in_flight
    assert planned("4x24gb", QWEN, request_tokens=100).games_in_flight == VLLM_GAMES


def test_gpu_runs_several_engines_of_a_small_model() -> None:
    several = planned("h200", "smollm2-135m")
    assert (len(several.actors), several.engines_per_gpu) == (4, 4)
    assert {each.gpus for each in several.actors} == {("0",)}
    engine, learner = several.uses
    assert 4 * engine.limit_bytes + learner.limit_bytes <= 150.8e9
    one = planned("h200", "smollm2-135m", **{"actors.num": 1})
    assert one.uses[0].limit_bytes > 3 * engine.limit_bytes
    alone = planned("2xh200", "smollm2-135m", **{"actors.engines_per_gpu": 3})
    assert [each.gpus for each in alone.actors] == [("0",)] * 3
    assert 3 * alone.gpu_memory <= 0.9
    turns = planned("h200", "smollm2-135m", **{"loop.mode": "sync", "actors.engines_per_gpu": 2})
    assert (turns.share, len(turns.actors)) == ("sleep", 2)
    given = planned("h200", "smollm2-135m", **{"actors.num": 2, "actors.engines_per_gpu": 4})
    assert len(given.actors) == 2
    packed = planned("8xh200", "smollm2-135m", **{"actors.num": 8, "actors.engines_per_gpu": 4})
    assert len(packed.learners) == 4
    with pytest.raises(ConfigError, match=r"actors.num = 5 .* needs 2 GPUs"):
        planned("h200", "smollm2-135m", **{"actors.num": 5, "actors.engines_per_gpu": 4})
    with pytest.raises(ConfigError, match="set one of them to 1"):
        load("default", {"actors.engines_per_gpu": 2, "actors.tensor_parallel": 2})


def test_engine_takes_a_share_that_is_free_on_each_gpu() -> None:
    (card,) = machine_named("h200").gpus
    cards = [replace(card, total_bytes=n, free_bytes=m) for n, m in ((80, 30), (24, 24))]
    shared, learns = (smallest(cards, by_share=each) for each in (True, False))
    assert shared.free_bytes / shared.total_bytes <= 30 / 80
    assert learns.free_bytes == int(PLANNED * 24)


PAGE = Path(__file__).parent.parent.parent / "docs/memory.md"
ROWS = re.findall(
    r"^\| (h200|8xh100|4x24gb) \| (\S+) \| `?(.*?)`?\s?\| (.+?) \| (.+?) \|$",
    PAGE.read_text(encoding="utf-8"),
    re.MULTILINE,
)


@every_row("row", *ROWS)
def test_documented_plans_match(row: tuple[str, ...]) -> None:
    there, model, given, actors, learner = row
    chosen = planned(there, model, **parse_options(given.split(), {}))
    shared = "" if chosen.share == "off" else ", shared"
    games = f"{chosen.games_in_flight} games, {chosen.max_loras} slots{shared}"
    assert actors == f"{len(chosen.actors)}, each {games}"
    checkpointing = ", checkpointing" if chosen.gradient_checkpointing else ""
    gigabytes = sum(chosen.uses[1].parts.values()) / 1e9
    assert learner == f"{len(chosen.learners)}, {gigabytes:.1f} GB{checkpointing}"


def test_documented_plans_are_complete() -> None:
    """The two largest models also with 8 and 4 bits, on small GPUs."""
    assert len(ROWS) == 12 + 4
