"""A run's results are the same value, however they are gathered."""

from pathlib import Path
from typing import Any

from tests.helpers.tracking import make_exploitability, make_score, make_tracker, run_updates
from unstable.records import tables
from unstable.records.reading import Skipped
from unstable.records.summary import RunSummary
from unstable.tracking.metrics import worst_metrics
from unstable.tracking.tracker import Tracker
from unstable.types.intervals import Interval
from unstable.types.metrics import EvalKey
from unstable.types.tallies import Least

LEAST = Least("main@1", Interval(0.31, 0.12, 0.48), games=24, compared=5, left_out=1)


def figures(summary: RunSummary) -> dict[str, Any]:
    """All of it but the rows, as plain values."""
    series = {
        name: {key: list(found) for key, found in getattr(summary, name).items()}
        for name in ("evaluations", "exploitability", "guard")
    }
    return {
        **series,
        "totals": dict(summary.totals),
        "worst": dict(summary.worst),
        "ratings": list(summary.ratings),
    }


def tracked(root: Path) -> Tracker:
    tracker = run_updates(make_tracker(root), 3)
    tracker.log_exploitability(make_exploitability(3, 0.25, 0.5), beside=True)
    tracker.log_evaluation([make_score(3, "base", 0.75)], beside=True)
    tracker.log_worst({"main": LEAST})
    tracker.end_update(4)
    tracker.end_evaluation(3)
    return tracker


def test_live_summary_equals_summary_of_files(tmp_path: Path) -> None:
    tracker = tracked(tmp_path)
    live, read = tracker.view.summary, RunSummary.read(tracker.folder, Skipped())
    assert live.opponents == read.opponents
    assert figures(live) == figures(read)
    assert list(live.rows) == list(read.rows) and live.version == 4
    assert read.exploitability and read.worst and len(read.evaluations) == 2
    assert read.opponents and read.ratings and read.totals["collect/games"] == 6


def test_dropped_rows_keep_their_totals(tmp_path: Path) -> None:
    read = RunSummary.read(tracked(tmp_path).folder, Skipped())
    short = RunSummary(ratings=read.ratings)
    for row in read.rows:
        short = short.plus(row, most_rows=2)
    assert [row["version"] for row in short.rows] == [3, 4]
    assert figures(short) == figures(read)


def test_latest_evaluation_prefers_rows_with_gain() -> None:
    key = EvalKey("Nim", "random", "sampled")
    rows = [{"version": at, key.name("score"): at / 4} for at in range(4)]
    assert [each.version for each in RunSummary.of(rows).latest] == [3]
    rows[2][key.name("gain")] = 0.25
    assert [each.version for each in RunSummary.of(rows).latest] == [2]
    assert [each.version for each in RunSummary.of(rows).newest] == [3, 2, 1, 0]


def test_tables_of_several_runs_are_merged() -> None:
    first = tables.Table("T", ["a", "b"], [["1", "2"]])
    second = tables.Table("T", ["a", "c"], [["3", "4"]])
    both = tables.merged({"one": first, "two": second})
    assert both.columns == ["run", "a", "b", "c"]
    assert both.rows == [["one", "1", "2", "–"], ["two", "3", "–", "4"]]
    assert both.only("c", "run", "none").rows == [["–", "one"], ["4", "two"]]


def test_only_last_worst_case_is_shown() -> None:
    later = LEAST._replace(score=Interval(0.5, 0.25, 0.75), opponent="main@2")
    rows = [{"version": 1, **worst_metrics({"main": each})} for each in (LEAST, later)]
    ((row,), empty) = (tables.worst(RunSummary.of(each)).rows for each in (rows, []))
    assert row == ["main", "0.50 (0.25 to 0.75)", "main@2", "24", "5", "1"] and empty == []
