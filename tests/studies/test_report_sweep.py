"""Results of a sweep: hand-computed values over seeds, the table, the page."""

import json
import math
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.rows import every_row
from unstable.models.hub import cache_folder
from unstable.report.page import plot_library, write_page
from unstable.studies.sweep.report import (
    Measure,
    Outcome,
    Spread,
    arrival,
    as_record,
    cells,
    headline,
    results,
    spread,
    sweep_page,
)

METRIC = "collect/reward"
MEASURE = Measure(METRIC, "max")


def outcome(setting: str, seed: int, *values: float | None, **changes: Any) -> Outcome:
    """Return a run with one version per value, of 100 games and a minute each."""
    rows = [
        {"version": version, METRIC: value, "collect/games": 100, "time/total": 60.0}
        for version, value in enumerate(values)
    ]
    one = Outcome(f"{setting}-seed{seed}", setting, seed, "done", rows, "unstable train", "out/x")
    return one._replace(**changes)


def test_results_over_seeds_match_hand_computed_values() -> None:
    a, b = results(
        [
            *(outcome("a", 1, 0.1, 0.5, 0.4), outcome("a", 2, 0.1, 0.6, state="stopped")),
            outcome("a", 3, None),
            *(outcome("b", 1, 0.2, 0.8, 0.9), outcome("b", 2, 0.3, 0.9, 0.7)),
            *(outcome("b", 4, 0.0, 0.2),),
        ],
        MEASURE,
    )
    half = 12.7062 * 0.1 / math.sqrt(2) * math.sqrt(2) / math.sqrt(2)
    assert a.end == pytest.approx((0.5, 0.5 - half * math.sqrt(2), 0.5 + half * math.sqrt(2)), 1e-4)
    assert a.best is not None and a.best.mean == pytest.approx(0.55)
    assert a.difference is None and a.games == pytest.approx((300 + 200 + 100) / 3)
    # Seed 1 at version 2: 0.9 - 0.4; seed 2 at version 1, where a's run stopped: 0.3.
    assert b.difference is not None and b.difference.mean == pytest.approx(0.4)
    assert b.minutes == pytest.approx((3 + 3 + 2) / 3)
    shorter, longer = outcome("a", 1, 0.1, 0.6), outcome("b", 1, 0.3, 0.9, 0.7)
    done = results([shorter, longer], MEASURE)[1].difference
    assert done is not None and done.mean == pytest.approx(0.1)  # of final values
    less = results([outcome("a", 1, 0.4, 0.2, 0.3)], Measure(METRIC, "min"))[0]
    assert less.best == Spread(0.2) and less.end == Spread(0.3)


def test_spread_has_an_interval_only_for_distinct_values() -> None:
    assert spread([]) is None
    assert spread([0.1]) == Spread(0.1) and spread([0.1, 0.1, 0.1]) == Spread(0.1)
    found = spread([1.0, 2.0, 3.0])
    assert found == pytest.approx((2.0, 2 - 4.3027 / math.sqrt(3), 2 + 4.3027 / math.sqrt(3)), 1e-4)


def test_score_interval_stays_within_its_range() -> None:
    runs = [outcome("a", 1, 0.1, 0.9), outcome("a", 2, 0.1, 0.2)]
    runs += [outcome("b", 1, 0.1, 0.1), outcome("b", 2, 0.1, 0.9)]
    score = Measure("eval/Nim-v0/random/sampled/score", "max")
    of_score, of_loss = (
        results(
            [each._replace(rows=[{**r, m.metric: r[METRIC]} for r in each.rows]) for each in runs],
            m,
        )
        for m in (score, Measure("learn/loss", "min"))
    )
    assert of_score[0].end == pytest.approx((0.55, 0.0, 1.0))
    assert of_score[1].difference == pytest.approx((-0.05, -1.0, 1.0))
    assert of_loss[0].end is not None and (of_loss[0].end.low or 0) < 0


def test_run_reaches_a_rung_with_the_first_value_at_or_after_it() -> None:
    rows = outcome("a", 1, 0.1, None, None, 0.3, None, 0.5).rows
    assert arrival(rows, METRIC, 2, "updates") == (3, 0.3)
    assert arrival(rows, METRIC, 3, "updates") == (3, 0.3)
    assert arrival(rows, METRIC, 6, "updates") is None
    assert arrival(rows, METRIC, 400, "games") == (3, 0.3)  # 100 games per version, from 0 on
    assert arrival(rows, METRIC, 401, "games") == (5, 0.5)
    assert arrival(rows, METRIC, 999, "games", ended=True) == (5, 0.5)


def test_headline_claims_only_significant_differences() -> None:
    first = [outcome("a", seed, 0.1, 0.5 + seed / 100) for seed in (1, 2, 3)]
    better = [outcome("b", seed, 0.1, 0.8 + seed / 99) for seed in (1, 2, 3)]
    same = [outcome("b", seed, 0.1, 0.6 * seed) for seed in (1, 2, 3)]
    for others, said in ((better, "b is best: 0.820 (0.795 to 0.845), better than a."), (same, "")):
        found = headline(results([*first, *others], MEASURE), MEASURE)
        assert found == said or "b is best" in found and "not clearly different from a." in found
    assert headline(results(first, MEASURE), MEASURE) == "a is best: 0.520 (0.495 to 0.545)."
    worse = [outcome("b", seed, 0.1, 0.2 + seed / 99) for seed in (1, 2, 3)]
    alike = [outcome("b", seed, 0.1, 0.5 + seed / 100) for seed in (1, 2, 3)]
    ends = ", better than all others.", ", not clearly different from b."
    for others, end in zip((worse, alike), ends, strict=True):
        assert headline(results([*first, *others], MEASURE), MEASURE).endswith(end)
    waiting = [each._replace(state="waiting", rows=[]) for each in first]
    assert headline(results(waiting, MEASURE), MEASURE) == "No run has finished yet."


@every_row("settings, seeds", (2, 3), (6, 3), (12, 3), (6, 5))
def test_headline_rarely_prefers_one_of_equal_settings(settings: int, seeds: int) -> None:
    chance, better = random.Random(0), 0
    for _ in range(300):
        runs = [
            outcome(f"s{n}", seed, 0.1, chance.gauss(0.5, 0.1))
            for n in range(settings)
            for seed in range(seeds)
        ]
        better += "better than" in headline(results(runs, MEASURE), MEASURE)
    assert better / 300 <= 0.05


def many(count: int) -> list[Outcome]:
    runs = [outcome(f"s{n}", seed, 0.1, n / 99 + seed / 9) for n in range(count) for seed in (1, 2)]
    hostile = "</script><script>window.broken = 1</script>"
    return [*runs, outcome("s0", 3, state="failed", line=f"exit code 1: {hostile}")]


def test_table_and_record_contain_every_setting_and_run() -> None:
    found = results(many(3), MEASURE)
    assert [cells(each)[0] for each in found] == ["s0", "s1", "s2"]
    assert cells(found[0])[-1] == "2 done, 1 failed" and cells(found[0])[2] == "–"
    record = json.loads(json.dumps(as_record(found, MEASURE)))
    assert record["goal"] == "max" and len(record["settings"][0]["runs"]) == 3
    assert record["settings"][1]["runs"][0]["values"] == [[0, 0.1], [1, 1 / 99 + 1 / 9]]
    assert record["settings"][1]["difference"]["mean"] == pytest.approx(1 / 99)
    assert record["settings"][0]["difference"] is None


@every_row("count", 1, 3, 12)
def test_page_shows_curves_of_the_first_and_best_settings(count: int, tmp_path: Path) -> None:
    found = results(many(count), MEASURE)
    fields = {each.setting: {"learner.epochs": 1} for each in found}
    page = sweep_page("mine", found, MEASURE, fields, [["2", "s0", "0.100", "stopped"]])
    (chart,) = next(each for each in page["sections"] if each["id"] == "curves")["charts"]
    shown = {point["series"] for point in chart["spec"]["data"]["values"]}
    assert shown == {each.setting for each in [found[0], *found[-7:]]}
    point = chart["spec"]["data"]["values"][1]
    assert point["low"] == min(point["low"], point["y"]) < point["high"]
    assert chart["spec"]["encoding"]["x"]["title"] == "version"
    write_page(tmp_path / "p.html", page, [], plot_library(cache_folder()))
    text = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert "window.broken" in text and not re.search(r"<script>window\.broken", text)


def test_curves_use_games_if_games_per_version_differ() -> None:
    cheap = [outcome("a", seed, 0.1, 0.2, 0.4) for seed in (1, 2)]
    dear = [outcome("b", seed, 0.1, 0.3) for seed in (1, 2)]
    for run in dear:
        run.rows.insert(1, {"version": 1, "collect/games": 150})  # another league member's row
    found = results([*cheap, *dear], MEASURE)
    page = sweep_page("mine", found, MEASURE, {"a": {}, "b": {}}, [])
    (chart,) = next(each for each in page["sections"] if each["id"] == "curves")["charts"]
    values = chart["spec"]["data"]["values"]
    places = {name: [v["x"] for v in values if v["series"] == name] for name in ("a", "b")}
    assert places == {"a": [100, 200, 300], "b": [100, 350]}
    assert chart["spec"]["encoding"]["x"]["title"] == "games"
