"""A report says what a run's files say, as data for a page, and no more than was measured."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.loop import make_context, train_to_end
from tests.helpers.mistakes import refused
from tests.helpers.records import game_record
from tests.helpers.rows import every_row
from tests.helpers.tracking import make_config, make_game, make_tracker, printed
from unstable import cli
from unstable.commands.report import report_at_end
from unstable.config import load
from unstable.records.environment import write_environment
from unstable.records.files import write_lines
from unstable.records.folder import RunFolder
from unstable.records.reading import read_rows
from unstable.report.charts import thinned
from unstable.report.page import as_data
from unstable.report.report import write_report
from unstable.report.run import Run, read_runs
from unstable.report.sections import sections
from unstable.report.settings import config_tables, differences
from unstable.report.survey import GamesSurvey, Met, payoff_cells, survey

LIBRARY = "window.vegaEmbed = null;"


@pytest.fixture(scope="module")
def folder(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A real run of three updates, with evaluations."""
    return train_to_end(make_context(tiny_folder, tmp_path_factory.mktemp("run") / "run"))


@pytest.fixture
def run(folder: RunFolder) -> Run:
    return read_runs([folder.root])[0]


def test_payoff_columns_appear_if_a_game_pays(run: Run) -> None:
    def table(run: Run) -> dict[str, Any]:
        tables = [table for each in sections([run], [survey(run)]) for table in each["tables"]]
        return next(table for table in tables if table["title"] == "Evaluations")

    assert "payoff" not in table(run)["columns"]
    row = dict(run.rows[-1])
    name = "eval/TicTacToe-v0/random/sampled/payoff"
    row |= {name: 0.5, f"{name}_low": 0.25, f"{name}_high": 0.75, f"{name}_gain": -0.125}
    paid = table(replace(run, rows=[row]))
    assert {len(cells) for cells in paid["rows"]} == {len(paid["columns"])}
    at = paid["columns"].index("payoff")
    assert ["+0.50 (+0.25 to +0.75)", "−0.12"] in [cells[at : at + 2] for cells in paid["rows"]]


def test_curves_contain_values_of_rows(run: Run) -> None:
    shown = {c["title"]: c for each in sections([run], [survey(run)]) for c in each["charts"]}
    scores = shown["Score by version"]["spec"]["data"]["values"]
    expected = [
        (
            row["version"],
            row["eval/TicTacToe-v0/random/sampled/score"],
            row["eval/TicTacToe-v0/random/sampled/low"],
        )
        for row in read_rows(run.folder.metrics)
        if row.get("eval/TicTacToe-v0/random/sampled/score") is not None
    ]
    assert [(p["x"], p["y"], p["low"]) for p in scores if p["series"] == "random"] == expected
    entropy = shown["Entropy"]["spec"]["data"]["values"]
    assert [p["y"] for p in entropy] == [r["learn/entropy"] for r in run.updates]
    assert {"Time", "Outcome matrix", "Staleness", "Truncated and invalid answers"} <= set(shown)


def test_curve_contains_zero_values(run: Run) -> None:
    names = ("exploit/Nim-v0/low", "exploit/Nim-v0/high")
    found = [(0.5, 1.0), (None, None), (0.0, 0.0)]
    rows = [{"version": v, **dict(zip(names, each, strict=True))} for v, each in enumerate(found)]
    solved = replace(run, rows=rows)
    charts = [chart for each in sections([solved], [survey(run)]) for chart in each["charts"]]
    (curve,) = (chart for chart in charts if chart["title"] == "Exploitability")
    points = curve["spec"]["data"]["values"]
    assert [(p["x"], p["low"], p["high"]) for p in points] == [(0, 0.5, 1.0), (2, 0.0, 0.0)]


def test_runs_are_compared_curve_by_curve(run: Run) -> None:
    both = sections([run, replace(run, name="other")], [survey(run), survey(run)])
    titles = [chart["title"] for each in both for chart in each["charts"]]
    (score,) = (c for each in both for c in each["charts"] if c["title"].startswith("Score"))
    assert {point["series"] for point in score["spec"]["data"]["values"]} == {run.name, "other"}
    assert "Time: other" in titles


def test_outcome_matrix_sums_results(tmp_path: Path, run: Run) -> None:
    games = [
        make_game(0, ("main@1", "random"), outcomes=(1.0, -1.0)),
        make_game(1, ("random", "main@1"), outcomes=(1.0, 0.0)),
        make_game(2, ("main@1", "main@1"), (0, 1), (1.0, -1.0)),
    ]
    root = RunFolder(tmp_path)
    (tmp_path / "games").mkdir()
    write_lines(root.games("train", 1), [game_record(game, [], 1, 0) for game in games])
    found = survey(replace(run, folder=root))
    assert found.pairs["TicTacToe-v0"] == {
        ("main@1", "random"): Met(2, 1.0),
        ("random", "main@1"): Met(2, 0.0),
        ("main@1", "main@1"): Met(2, 0.0),
    }
    assert [place.file.version for place in found.places] == [1, 1, 1]


def test_many_versions_are_grouped_and_curves_averaged() -> None:
    pairs = {(f"main@{version}", "random"): Met(1, version / 100) for version in range(100)}
    cells, names = payoff_cells(pairs)
    assert names[0] == "v0–16" and names[-2:] == ["v85–99", "random"]
    assert cells[0]["count"] == 17 and cells[0]["mean"] == pytest.approx(0.08)
    assert sum(cell["count"] for cell in cells) == 100
    few = thinned([{"x": x, "y": float(x)} for x in range(1000)], most=100)
    assert len(few) == 100 and few[-1] == {"x": 999, "y": 994.5}


@every_row(
    "changes, paths",
    ({}, []),
    ({"loop.steps": 3, "seed": 4}, ["loop.steps", "seed"]),
    (
        {"learner.algorithm.name": "grpo", "learner.algorithm.clip_low": 0.3, "groups.size": 4},
        ["groups.size", "learner.algorithm.name", "learner.algorithm.clip_low"],
    ),
    ({"games.1.env": "Nim-v0"}, ["games.1.env"]),
    ({"opponents.fixed": [{"kind": "expert"}]}, ["opponents.fixed.0.kind"]),
)
def test_differences_list_changed_fields(changes: dict[str, Any], paths: list[str]) -> None:
    assert [each.path for each in differences(load("default", changes))] == paths


def test_fields_that_differ_between_runs_are_marked(run: Run) -> None:
    other = replace(run, name="other", config=run.config.model_copy(update={"seed": 9}))
    chosen = config_tables([run, other])[0]
    rows = {r[0]: (r[1:], mark) for r, mark in zip(chosen.rows, chosen.marked, strict=True)}
    assert rows["seed"] == (["0", "9", "0"], True)
    assert rows["loop.steps"] == (["3", "3", "8"], False)


def test_data_cannot_end_its_script_element() -> None:
    text = as_data({"text": "</script><script>alert(1)</script><!--\u2028\x1b"})
    assert "<" not in text and "\x1b" not in text
    assert json.loads(text)["text"].startswith("</script><script>alert(1)")


def test_page_is_self_contained(folder: RunFolder, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    size = write_report([folder.root], out, LIBRARY)
    page = out.read_text(encoding="utf-8")
    assert size == out.stat().st_size and "{{" not in page
    assert not re.findall(r'(?:src|href)="(?!data:,|#)', page)
    assert "default-src 'none'" in page and "unsafe-eval" not in page
    data = json.loads(re.findall(r'id="report">(.*?)</script>', page)[0])
    assert data["runs"][0]["commands"] == [f"unstable train --config {folder.config}"]


def copied(folder: RunFolder, root: Path, *names: str) -> Path:
    root.mkdir()
    for name in names:
        (root / name).write_bytes((folder.root / name).read_bytes())
    return root


@every_row(
    "make, message",
    (lambda f, p: [p], "contains no config.yaml; give a folder of unstable train"),
    (lambda f, p: [copied(f, p / "a", "config.yaml")], "contains no metrics yet"),
    (
        lambda f, p: [copied(f, p / "a"), f.root, f.root],
        "run': duplicate; remove one",
    ),
)
def test_folder_without_run_gives_one_line_error(
    folder: RunFolder, tmp_path: Path, make: Callable[..., list[Path]], message: str
) -> None:
    refused(message, read_runs, make(folder, tmp_path))


def test_runs_of_equal_names_get_longer_names(folder: RunFolder, tmp_path: Path) -> None:
    roots = []
    for above in ("a", "b"):
        (tmp_path / above).mkdir()
        roots.append(copied(folder, tmp_path / above / "run", "config.yaml", "metrics.jsonl"))
    assert [run.name for run in read_runs(roots)] == ["a/run", "b/run"]


def test_report_contains_command_and_packages(folder: RunFolder, tmp_path: Path) -> None:
    copy = RunFolder(copied(folder, tmp_path / "run", "config.yaml", "metrics.jsonl"))
    write_environment(copy, "unstable train --seed 4")
    write_report([copy.root], copy.report, LIBRARY)
    data = json.loads(re.findall(r'id="report">(.*?)</script>', copy.report.read_text())[0])
    assert data["runs"][0]["commands"][0] == "unstable train --seed 4  # original command"
    (packages,) = (t for t in data["sections"][-1]["tables"] if t["title"] == "Packages")
    assert ["torch", version("torch")] in packages["rows"]


def test_command_writes_report_to_given_path(
    folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.html"
    assert cli.run(["report", str(folder.root), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"report: {out} ({out.stat().st_size / 1e6:.1f} MB)\n"
    own, away = str(folder.root), str(tmp_path / "nowhere/page.html")
    for said, words in {
        "^No such option: --outt .*--out.*; see unstable report --help": [own, "--outt", "x"],
        "nowhere/page.html': folder not found; create it": [own, "--out", away],
        "is a folder; give a file": [own, "--out", str(tmp_path)],
        "^RUN = '/nowhere': contains no config.yaml": ["/nowhere"],
        "^Missing argument 'RUN_DIR'; see unstable report": [],
    }.items():
        refused(said, cli.run, ["report", *words])


def test_failed_report_does_not_fail_run(
    folder: RunFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    copy = RunFolder(copied(folder, tmp_path / "run", "config.yaml", "metrics.jsonl"))
    with caplog.at_level("INFO"):
        told: list[str] = []
        report_at_end(copy, told.append)
    assert copy.report.is_file() and "the report took" in caplog.text and not told
    report_at_end(RunFolder(tmp_path / "nothing"), told.append)
    assert "the report failed (" in caplog.text and "contains no config.yaml" in told[0]


def test_summary_names_report_if_enabled(tmp_path: Path) -> None:
    for wanted in (True, False):
        config = make_config(tracking={"report": wanted, "dashboard": "off"})
        tracker = make_tracker(tmp_path / f"{wanted}", config)
        tracker.finish("all updates made")
        assert (f"report      {tracker.folder.report}" in printed(tracker)) == wanted
        tracker.close()


def test_alarms_are_listed_by_rule_and_version(run: Run) -> None:
    rows: list[dict[str, Any]] = [
        {"version": version, "guard/alarm/entropy": 0.05 if version > 2 else None}
        for version in range(20)
    ]
    rows[7]["guard/action/rollback"] = 1.0
    found = sections([replace(run, rows=rows)], [GamesSurvey()])
    (guard,) = (table for each in found for table in each["tables"] if table["title"] == "Guard")
    assert guard["rows"] == [
        ["alarm: entropy", "3, 4, 5, 6, 7, 8, 9, 10, 11, 12 and 7 more", "0.05"],
        ["action: rollback", "7", ""],
    ]


def test_run_without_update_has_a_report(folder: RunFolder, tmp_path: Path) -> None:
    root = copied(folder, tmp_path / "run", "config.yaml")
    first = (folder.metrics.read_text(encoding="utf-8").splitlines())[0]
    (root / "metrics.jsonl").write_text(first + "\n", encoding="utf-8")
    write_report([root], tmp_path / "page.html", LIBRARY)
    assert "Learning was not measured." in (tmp_path / "page.html").read_text()
