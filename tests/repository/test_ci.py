"""`.ci/run`: the rows of each table that a commit selects, and the report on budgets of seconds."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from scripts.ci_report import main
from tests.helpers import tables
from tests.helpers.durations import Durations
from tests.helpers.tables import ROOT, SOURCES, TURNS, runs, table

ROWS = [str(number) for number in range(23)]
CORE = ["3", "7"]


def selected() -> list[str]:
    """Return the rows of a table of 23 rows that this commit runs."""
    found: list[Any] = []
    for parameter in table("gymnasium", ROWS, CORE):
        (mark,) = (mark for mark in parameter.marks if mark.name == "tables")
        found += parameter.values if runs(*mark.args) else ()
    return found


def test_commit_runs_core_rows_and_a_quarter_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "changed", frozenset)
    quarters = []
    for commit in ("ab0", "ab1", "ab2", "ab3"):
        monkeypatch.setattr(tables, "commit", lambda commit=commit: commit)
        quarters.append(selected())
    assert all({*CORE} < {*rows} and len(rows) in (7, 8) for rows in quarters)
    assert sorted(r for rows in quarters for r in {*rows} - {*CORE}) == sorted({*ROWS} - {*CORE})
    for commit, quarter in (("fc4", 0), ("", 0), ("fc7", 3)):
        monkeypatch.setattr(tables, "commit", lambda commit=commit: commit)
        assert selected() == quarters[quarter]


def test_changed_table_runs_completely(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tables, "RECORD", tmp_path / "tables.json")
    assert {*json.loads((ROOT / "tests/data/tables.json").read_text())} == {*SOURCES}
    for recorded, whole in ((dict(tables.digests()), False), ({"gymnasium": "another"}, True)):
        tables.RECORD.write_text(json.dumps(recorded))
        tables.changed.cache_clear()
        assert (selected() == ROWS) is whole
        assert ("gymnasium" in tables.plan()) is whole
    tables.changed.cache_clear()


def test_rotating_tests_exist() -> None:
    for each in TURNS.values():
        for test in each["tests"]:
            file, _, name = test.partition("::")
            assert f"def {name}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), test


BUDGET = """
[ci.seconds]
quick = 100
reason = "why it rose"
[ci.slowest]
quick = 10
"""


@pytest.mark.parametrize(
    "seconds, slowest, over",
    [
        (150, 15, []),
        (151, 15, ["over budget: part quick took 151 s, more than 1.5 x its budget of 100 s"]),
        (9, 16, ["over budget: quick test b took 16 s, more than 1.5 x 10 s"]),
    ],
)
def test_report_names_parts_and_tests_over_budget(
    seconds: int, slowest: int, over: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "budget.toml").write_text(BUDGET)
    (tmp_path / "parts").write_text(f"quick {seconds}\n")
    rows = [{"test": "a", "seconds": 3}, {"test": "b", "seconds": slowest}]
    (tmp_path / "quick.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert main(tmp_path, tmp_path / "budget.toml") == bool(over)
    printed = capsys.readouterr()
    assert printed.err.splitlines() == over
    assert ["quick", str(seconds), "100", "2"] in [
        line.split() for line in printed.out.splitlines()
    ]
    assert printed.out.index(" b\n") < printed.out.index(" a\n"), "the slowest test comes first"


def test_durations_sum_the_phases_of_a_finished_test(tmp_path: Path) -> None:
    recorder = Durations(tmp_path / "durations.jsonl")
    phases: list[tuple[str, Literal["setup", "call", "teardown"], int]]
    phases = [("a", "setup", 1), ("b", "call", 4), ("a", "call", 2)]
    phases += [("a", "teardown", 0), ("b", "teardown", 0), ("c", "call", 5)]
    for name, phase, seconds in phases:
        report = pytest.TestReport(name, ("", 0, ""), {}, "passed", None, phase, (), seconds)
        recorder.pytest_runtest_logreport(report)
    rows = map(json.loads, (tmp_path / "durations.jsonl").read_text().splitlines())
    assert {row["test"]: row["seconds"] for row in rows} == {"a": 3, "b": 4}
