"""How many cards learn: where playing and learning an update take about as long."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.rows import every_row
from unstable.cli import parse_options
from unstable.config import ConfigError, load
from unstable.engines.needs import NEEDS
from unstable.planning.elsewhere import machine_named
from unstable.planning.figures import CARDS, card_like
from unstable.planning.pace import games_at_once, played_turns
from unstable.planning.plan import Plan, plan
from unstable.planning.resolve import resolve


def planned(there: str, model: str, **options: Any) -> Plan:
    config = load("qwen3_24gb", {"model.name": model} | options)
    return plan(config, [machine_named(there)], NEEDS)


@every_row(
    ("there", "model", "actors", "learners"),
    [
        ("8xh100", "Qwen/Qwen3-1.7B", 5, 3),
        ("8xh100", "Qwen/Qwen3-8B", 4, 4),
        ("2xh100", "Qwen/Qwen3-8B", 1, 1),
        ("h200", "Qwen/Qwen3-8B", 1, 1),
    ],
)
def test_cards_learn_where_that_takes_as_long_as_playing(
    there: str, model: str, actors: int, learners: int
) -> None:
    chosen = planned(there, model)
    assert (len(chosen.actors), len(chosen.learners)) == (actors, learners)
    assert "an update, estimated" in chosen.text()


def test_no_other_number_takes_less_time() -> None:
    best = planned("8xh100", "Qwen/Qwen3-4B")
    assert best.pace is not None
    others = [planned("8xh100", "Qwen/Qwen3-4B", **{"learner.num": n}) for n in range(1, 8)]
    assert best.update_s == min(each.update_s for each in others)
    assert [each.pace.play_s for each in others if each.pace] == sorted(
        each.pace.play_s for each in others if each.pace
    )


def test_numbers_that_are_given_stay() -> None:
    options = {"actors.num": 7, "learner.num": 1}
    given = planned("8xh100", "Qwen/Qwen3-8B", **options)
    assert (len(given.actors), len(given.learners)) == (7, 1)
    rest = planned("8xh100", "Qwen/Qwen3-8B", **{"actors.num": 6})
    assert (len(rest.actors), len(rest.learners)) == (6, 2)
    config = load("qwen3_24gb", {"model.name": "Qwen/Qwen3-8B"})
    chosen = planned("8xh100", "Qwen/Qwen3-8B")
    assert resolve(config, chosen, "fresh").learner.num == len(chosen.learners)


def test_ranks_share_a_base_that_one_card_does_not_hold() -> None:
    """Of the numbers of ranks, those that do not fit are not chosen."""
    chosen = planned("4x24gb", "Qwen/Qwen3-8B", **{"learner.parallel": "fsdp"})
    assert len(chosen.learners) >= 2


def test_by_turns_both_times_add_up() -> None:
    at_once, by_turns = (
        planned("8xh100", "Qwen/Qwen3-1.7B", **{"loop.mode": mode}) for mode in ("async", "sync")
    )
    for chosen in (at_once, by_turns):
        assert chosen.pace is not None
    assert by_turns.update_s == sum(by_turns.pace[:2]) if by_turns.pace else False
    assert at_once.update_s == max(at_once.pace[:2]) if at_once.pace else False


def test_the_plan_names_the_batch_that_fills_the_actors() -> None:
    few = planned("8xh100", "Qwen/Qwen3-1.7B").text()
    assert "320 of 1,920 places have a game" in few and "learner.batch_size x 6.0" in few
    full = planned("8xh100", "Qwen/Qwen3-1.7B", **{"learner.batch_size": 3072})
    assert "learner.batch_size x" not in full.text()


def test_engines_answer_more_turns_than_are_trained() -> None:
    """Of games against past versions one seat's; of evaluations against a program one seat's."""
    one, none = {"learner.batch_size": 100, "opponents.fixed": []}, {"eval.every": 0}
    only = {"self": 1.0, "past": 0.0, "fixed": 0.0}
    alone = load("default", one | none | {"opponents.draw": only})
    assert played_turns(alone) == 100
    half = load("default", one | none | {"opponents.draw": only | {"self": 0.5, "past": 0.5}})
    assert played_turns(half) == pytest.approx(100 / 0.75)
    assert games_at_once(half, sync=True) == pytest.approx(100 / 8 / 0.75)
    options = {"eval": {"every": 4, "games": 16, "opponents": ["random"], "temperature": [1.0]}}
    judged = load("default", one | options | {"opponents.draw": only})
    assert len(judged.games) == 1 and played_turns(judged) == 100 + 16 * 8 / 2 / 4


def test_a_card_has_several_engines_of_a_small_model() -> None:
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
    with pytest.raises(ConfigError, match=r"actors.num = 5 .* needs 2 GPUs"):
        planned("h200", "smollm2-135m", **{"actors.num": 5, "actors.engines_per_gpu": 4})
    with pytest.raises(ConfigError, match="set one of them to 1"):
        load("default", {"actors.engines_per_gpu": 2, "actors.tensor_parallel": 2})


def test_a_card_is_known_by_its_name_or_else_by_its_memory() -> None:
    assert card_like("NVIDIA H100 80GB HBM3", 85 * 10**9) is CARDS["h100"]
    assert card_like("NVIDIA A100-SXM4-80GB", 85 * 10**9) is CARDS["a100"]
    assert card_like("NVIDIA L40S", 48 * 10**9) is CARDS["l40s"]
    assert card_like("NVIDIA GeForce RTX 3090", 25 * 10**9) is CARDS["rtx3090"]
    assert card_like("another", 24 * 10**9) is CARDS["rtx3090"]
    assert card_like("another", 141 * 10**9) is CARDS["h200"]


PAGE = Path(__file__).parent.parent.parent / "docs/memory.md"
ROWS = re.findall(
    r"^\| (h200|8xh100|4x24gb) \| (\S+) \| `?(.*?)`?\s?\| (.+?) \| (.+?) \| (.+?) \|$",
    PAGE.read_text(encoding="utf-8"),
    re.MULTILINE,
)


@every_row("row", ROWS)
def test_the_page_says_what_is_planned(row: tuple[str, ...]) -> None:
    there, model, given, actors, learner, times = row
    chosen = planned(there, model, **parse_options(given.split(), {}))
    assert chosen.pace is not None
    shared = "" if chosen.share == "off" else ", shared"
    games = f"{chosen.games_in_flight} games, {chosen.max_loras} slots{shared}"
    assert actors == f"{len(chosen.actors)}, each {games}"
    checkpointing = ", checkpointing" if chosen.gradient_checkpointing else ""
    gigabytes = sum(chosen.uses[1].parts.values()) / 1e9
    assert learner == f"{len(chosen.learners)}, {gigabytes:.1f} GB{checkpointing}"
    assert times == f"{chosen.pace.play_s:.1f} and {chosen.pace.learn_s:.1f}"


def test_the_page_has_three_machines_and_four_models() -> None:
    """And the two largest with a base in 8 and in 4 bits, where cards are small."""
    assert len(ROWS) == 12 + 4
