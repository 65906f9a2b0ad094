"""The head of a report states the measured change, by stated rules, and how the run ended."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.records import game_record
from tests.helpers.rows import every_row
from tests.helpers.tracking import make_config, make_game, make_tracker, run_updates
from unstable.commands.report import state
from unstable.config import dump
from unstable.records.files import json_line, write_lines
from unstable.records.folder import RunFolder
from unstable.report.report import write_report
from unstable.report.run import Run
from unstable.report.verdict import verdict
from unstable.tracking.status import Ending

Bounds = tuple[float, float]


def run_of(rows: list[dict[str, Any]]) -> Run:
    return Run("run", RunFolder(Path("run")), make_config(), rows, None)


def exploited(*found: Bounds, env: str = "Kuhn") -> Run:
    """A run whose versions 0, 1, ... have such bounds of exploitability."""
    names = (f"exploit/{env}/low", f"exploit/{env}/high")
    rows = [{"version": v, **dict(zip(names, each, strict=True))} for v, each in enumerate(found)]
    return run_of(rows)


def gained(*gains: tuple[float, float, float]) -> Run:
    row: dict[str, float] = {"version": 3}
    for number, (gain, low, high) in enumerate(gains):
        values = {"score": 0.5, "games": 64, "gain": gain, "gain_low": low, "gain_high": high}
        row |= {f"eval/Nim/bot{number}/sampled/{name}": value for name, value in values.items()}
    return run_of([row])


@every_row(
    "first, last, kind, why",
    ((0.4540, 0.4541), (0.4657, 0.4678), "same", "about the same: less than 10 % apart"),
    ((0.9635, 0.9640), (0.9625, 0.9630), "same", "about the same: less than 10 % apart"),
    ((0.456, 0.456), (0.266, 0.266), "better", "lower"),
    ((0.5, 0.5), (0.56, 0.56), "worse", "higher"),
    ((0.4, 0.5), (0.1, 0.45), "same", "about the same: 0.400–0.500 and 0.100–0.450 overlap"),
    ((0.0, 0.0), (0.0, 0.0), "same", "about the same: 0.000 and 0.000 overlap"),
)
def test_exploitability_has_a_margin(first: Bounds, last: Bounds, kind: str, why: str) -> None:
    found = verdict(exploited(first, last))
    assert found.kind == kind
    assert f" at version 1, {why} (upper bounds of NashConv / 2" in found.reasons[0]


@given(st.floats(0.001, 100), st.floats(0, 100), st.floats(0, 0.5), st.floats(0, 0.5))
def test_verdict_is_symmetric(first: float, last: float, width: float, last_width: float) -> None:
    """But for the margin, which is of the first figure."""
    kind = verdict(exploited((first, first + width), (last, last + last_width))).kind
    back = verdict(exploited((last, last + last_width), (first, first + width))).kind
    assert {kind, back} in ({"better", "worse"}, {"same"}, {"same", "worse"})
    if abs(last + last_width - first - width) < 0.1 * (first + width) * 0.999:
        assert kind == "same"


@every_row(
    "signs, answer",
    ((1, 1), "It learned."),
    ((1, 0, 0), "It learned on 1 of 3 measures; the others show no difference."),
    ((-1,), "It became worse."),
    ((-1, 0), "It became worse on 1 of 2 measures; the others show no difference."),
    ((1, 1, 0, -1), "Mixed: 2 of 4 measures improved, 1 worsened."),
    ((0, 0), "No significant difference from version 0."),
)
def test_headline_counts_measures_that_disagree(signs: tuple[int, ...], answer: str) -> None:
    gains = {1: (0.3, 0.2, 0.4), 0: (0.0, -0.1, 0.1), -1: (-0.3, -0.4, -0.2)}
    assert verdict(gained(*(gains[sign] for sign in signs))).answer == answer


def test_gain_is_written_as_sentence() -> None:
    assert verdict(gained((0.25, -0.5, 0.75))).reasons == [
        "Against bot0: score 0.50 at version 3, +0.25 (95 % interval −0.50 to +0.75) compared "
        "with version 0 in the same 64 games."
    ]


def test_verdict_corrects_for_many_measures() -> None:
    by_chance, none = (0.1, 0.005, 0.195), (0.0, -0.1, 0.1)
    assert verdict(gained(by_chance)).kind == "better"
    assert verdict(gained(by_chance, *[none] * 4)).kind == "same"


def test_measures_with_one_value_are_named() -> None:
    def why(run: Run) -> list[str]:
        found = verdict(run)
        assert found.answer == "Learning was not measured."
        return found.reasons

    assert why(run_of([{"version": 0}])) == ["No update is finished yet."]
    assert why(run_of([{"version": 4}])) == ["No measure exists at two versions."]
    rows = [dict(exploited((0.4, 0.5)).rows[0]), {"version": 1, "exploit/Kuhn/low": None}]
    rows[0]["eval/Nim/random/sampled/score"] = 0.5
    assert why(run_of(rows)) == [
        "No measure exists at two versions; measured once: exploitability in Kuhn at version 0, "
        "the score against random at version 0."
    ]


def recorded(root: Path) -> RunFolder:
    """A folder with a config and a game, as `unstable play` leaves it."""
    folder = RunFolder(root)
    (root / "games").mkdir(parents=True)
    folder.config.write_text(dump(make_config(seed=4)), encoding="utf-8")
    game = make_game(0, ("random", "random"), trained=(), purpose="eval")
    write_lines(folder.games("eval", 0), [game_record(game, [], 0, 0)])
    return folder


def page_of(folder: RunFolder) -> dict[str, Any]:
    write_report([folder.root], folder.report, "", state=state)
    text = folder.report.read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(re.findall(r'id="report">(.*?)</script>', text)[0])
    return data


def titles(page: dict[str, Any]) -> set[str]:
    return {each["title"] for part in page["sections"] for each in [part, *part["tables"]]}


def test_page_of_played_games_contains_only_games(tmp_path: Path) -> None:
    page = page_of(recorded(tmp_path / "play"))
    (run,) = page["runs"]
    assert (run["answer"], run["state"]) == ("Recorded games.", "")
    assert run["reasons"] == ["This folder contains no training."]
    assert run["facts"] == [["games", "1"], ["seed", "4"]] and run["commands"] == []
    assert titles(page) == {"Players", "Configuration", "Packages"}


def test_run_without_rows_counts_as_training(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run")
    make_tracker(folder.root).close()
    page = page_of(folder)
    (run,) = page["runs"]
    assert run["answer"] == "Learning was not measured."
    assert run["reasons"] == ["No update is finished yet."]
    assert run["commands"] == [f"unstable train --config {folder.config}"]
    folder.offline.write_text("{}", encoding="utf-8")
    assert page_of(folder)["runs"][0]["commands"] == [], "its config does not tell what it read"
    assert "Changed from the defaults" in titles(page) and "Guard" not in titles(page)


@every_row(
    "ending, reason, line",
    ("ended", "all updates made", "State of the run: ended (all updates made)."),
    ("interrupted", "", "State of the run: interrupted."),
    ("failed", "no space is left", "State of the run: failed (no space is left)."),
)
def test_page_states_how_run_ended(tmp_path: Path, ending: Ending, reason: str, line: str) -> None:
    folder = recorded(tmp_path / "run")
    tracker = make_tracker(folder.root)
    with tracker.refreshing():
        run_updates(tracker)
        assert page_of(folder)["runs"][0]["state"].startswith("State of the run: running (process")
    tracker.finish(reason, ending)
    tracker.close()
    (run,) = page_of(folder)["runs"]
    assert run["state"] == line
    names = [name for name, _ in run["facts"]]
    assert "training games" in names and "games" not in names


def test_page_states_that_run_died(tmp_path: Path) -> None:
    folder = recorded(tmp_path / "run")
    tracker = make_tracker(folder.root)
    with tracker.refreshing():
        pass
    tracker.close()
    said = json.loads(folder.status.read_text(encoding="utf-8"))
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    said |= {"pid": done.pid, "written": time.time() - 120}
    folder.status.write_bytes(json_line(said))
    (run,) = page_of(folder)["runs"]
    assert run["state"].startswith(f"State of the run: died (process {done.pid} no longer exists; ")
