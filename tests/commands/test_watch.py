"""A run seen from outside: `unstable watch`, `unstable runs`, names, tags, the best version."""

import json
import math
import re
import shutil
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.mistakes import refused
from tests.helpers.screens import Screen
from tests.helpers.tracking import make_config, make_tracker, printed, run_updates, shown
from unstable.cli import run
from unstable.commands.finished import checkpoint_of
from unstable.commands.runs import runs
from unstable.commands.session import make_folder
from unstable.commands.watch import Watched, watch
from unstable.config import ConfigError, dump
from unstable.records.folder import RunFolder
from unstable.records.reading import read_last_rows, read_rows
from unstable.records.summary import RunSummary
from unstable.records.tables import newest_score
from unstable.tracking.dashboard import Dashboard
from unstable.tracking.view import RunView

SIZES = [(80, 24), (120, 40), (200, 60)]
PANES = ("collection", "last game", "ratings", "learner", "evaluation")


def render(view: RunView, width: int, height: int) -> str:
    return shown(Dashboard(view), width, height)


def make_run(root: Path, **sections: Any) -> RunFolder:
    """A run that has made two updates and goes on, as its folder shows it."""
    config = make_config(**sections)
    root.mkdir(parents=True)
    (root / "config.yaml").write_text(dump(config))
    tracker = run_updates(make_tracker(root, config, device="two cores"))
    tracker.phase("playing", 30, 128)
    with tracker.refreshing():
        pass
    tracker.close()
    return RunFolder(root)


def changed(folder: RunFolder, **values: Any) -> None:
    folder.status.write_text(json.dumps(json.loads(folder.status.read_text()) | values))


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_watch_shows_the_dashboard_of_the_run(tmp_path: Path, width: int, height: int) -> None:
    tracker = run_updates(make_tracker(tmp_path))
    tracker.phase("playing", 30, 128)
    own = tracker.view
    now = own.clock()
    own.clock = lambda: now
    record = json.loads(json.dumps(own.record()))
    seen = RunView.read(record, own.config, own.summary, lambda: 0.0)
    assert render(seen, width, height) == render(own, width, height)
    later = RunView.read(record, own.config, own.summary, lambda: 3600.0)
    assert "1 h 00 min" in render(later, 200, 60).splitlines()[0]


@pytest.mark.parametrize("record", [{}, {"now": "x"}, {"now": 1.0, "phase": 3}])
def test_invalid_view_is_rejected(tmp_path: Path, record: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        RunView.read(record, make_config(), RunSummary(), lambda: 0.0)


def test_output_without_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watch(make_run(tmp_path / "run").root)
    text = capsys.readouterr().out
    assert all(f"─ {pane} ─" in text for pane in PANES)
    assert "update 3 of 3" in text and "30/128" in text


def test_ended_run_shows_how_it_ended(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    long_ago = time.time() - 7200
    changed(folder, state="ended", reason="all updates made", written=long_ago)
    watched = Watched(folder)
    text = render(watched.view, 200, 60)
    assert "ended: all updates made" in text
    assert not re.search(r"\d h \d\d min", text.splitlines()[0])
    changed(folder, state="running", host=socket.gethostname(), pid=2**22 + 1, written=long_ago)
    watched.refresh()
    text = render(watched.view, 200, 60)
    assert "died: process 4194305 no longer exists; nothing was written for 2 h 00 min" in text
    changed(folder, state="failed", reason="the disk is full; " + 20 * "make room ")
    watched.refresh()
    text = render(watched.view, 200, 60)
    assert "failed · no checkpoint; start the run again · the disk is full" in text
    folder.status.write_text("{")  # impossible, as the file is replaced atomically
    watched.refresh()
    assert render(watched.view, 200, 60) == text


def test_sigterm_exits_with_143(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    with Screen(tmp_path, 80, 24, "watch", str(folder.root)) as screen:
        screen.sees(lambda text: "─ ratings ─" in text)
        screen.process.terminate()
        assert screen.end() == 143


@pytest.mark.parametrize(
    "status", [{"written": "now"}, {"view": []}, {"view": {"now": 1.0}}, {"state": 3, "view": 4}]
)
def test_invalid_state_keeps_the_last_view(tmp_path: Path, status: dict[str, Any]) -> None:
    folder = make_run(tmp_path / "run")
    watched = Watched(folder)
    shown = render(watched.view, 200, 60)
    changed(folder, **status)
    watched.refresh()
    assert "main@2" in shown and "main@2" in render(watched.view, 200, 60)


def test_state_is_written_without_a_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RunView, "record", lambda self: 1 / 0)
    status = json.loads(make_run(tmp_path / "run").status.read_text())
    assert status["view"] is None and status["phase"]["name"] == "playing"


def test_unwatchable_folder_is_one_line(tmp_path: Path) -> None:
    refused("contains no config.yaml; give a run folder", watch, tmp_path)
    (tmp_path / "config.yaml").write_text("{}")
    refused("its state.json has no dashboard", watch, tmp_path)
    with pytest.raises(ConfigError, match="^No such option: --twice.*; see unstable watch --help"):
        run(["watch", str(tmp_path), "--twice", "1"])


def test_last_rows_of_a_file_are_complete(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert read_last_rows(path, 3) == []
    lines = "".join(f'{{"version": {number}}}\n' for number in range(100))
    path.write_text(lines + '{"version": 1')
    assert [row["version"] for row in read_last_rows(path, 3)] == [97, 98, 99]
    few = read_last_rows(path, 50, most_bytes=100)
    assert 1 < len(few) < 10
    assert [row["version"] for row in few] == [*range(100 - len(few), 100)]


@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (200, 60)])
def test_dashboard_follows_the_terminal_size(tmp_path: Path, columns: int, rows: int) -> None:
    folder = make_run(tmp_path / "run")
    with Screen(tmp_path, columns, rows, "watch", str(folder.root)) as screen:
        text = screen.sees(draws("update 3 of 3", "30/128"))
        assert ("─ machine ─" in text) == (columns == 200)
        assert all(len(line) <= columns for line in text.splitlines())
        for size in ((columns + 20, rows + 4), (60, 20), (30, 8), (columns, rows)):
            screen.resize(*size)
            screen.sees(partial(fills, size[0]))
        changed(folder, state="ended", reason="time is up", written=time.time())
        screen.sees(lambda text: "ended: time is up" in text)
        screen.press("q")
        assert screen.end() == 0


def draws(*patterns: str) -> Callable[[str], bool]:
    """Return a check that one frame of the screen holds every pane and all these patterns."""
    wanted = [*(f"─ {pane} ─" for pane in PANES), *patterns]
    return lambda text: all(re.search(each, text) for each in wanted)


def fills(columns: int, text: str) -> bool:
    """Return True if `text` was drawn for a terminal of `columns` columns."""
    lines = text.splitlines()
    if columns < 50:
        return lines[0].startswith("update") and "─" not in text
    return any(line.startswith("╭─") and len(line) == columns for line in lines)


@pytest.mark.slow
def test_watch_follows_a_real_run(project: Path) -> None:
    """The dashboard of a real run with two learner ranks, and what another terminal sees of it."""
    arguments = ["train", "--config", "small.yaml", "--run_dir", "run", "--steps", "100000"]
    train = [*arguments, "--tracking.dashboard", "auto", "--eval.every", "100000"]
    train += ["--num_learners", "2"]
    seen = draws(r"main@\d+ +\d+\.\d", r"update \d+ of 100,?000")
    with Screen(project, 80, 24, *train) as own:
        assert "actor 0" not in own.sees(draws(r"update \d+ of 100,?000"))
        own.resize(200, 60)
        own.sees(draws(r"update \d+ of 100,?000", "actor 0"))
        with Screen(project, 80, 24, "watch", "run") as other:
            other.sees(seen)  # a second late: it may miss updates
            other.resize(200, 60)
            other.sees(seen)
            own.press("\x03")
            assert own.end() == 130
            other.sees(lambda text: "interrupted · to resume: " in text)
            other.press("\x03")
            assert other.end() == 0
    assert "to resume   unstable train --resume run" in own.shown
    folder = RunFolder(project / "run")
    assert folder.log("learner-1").is_file()
    rows = read_rows(folder.metrics)
    assert len(rows) > 1 and all(math.isfinite(row["learn/loss"]) for row in rows[1:])


def test_table_lists_state_and_tags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_run(tmp_path / "first", tracking={"dashboard": "off", "tags": ["kl", "first try"]})
    changed(make_run(tmp_path / "second"), state="failed", reason="no memory")
    (tmp_path / "no run").mkdir()
    found = {Path(each.path).name: each for each in runs(tmp_path)}
    assert found.keys() == {"first", "second"}
    assert found["second"].state == "failed" and found["first"].tags == ("kl", "first try")
    assert found["first"].versions == 3 and found["first"].score == "0.60 against random"
    assert [Path(each.path).name for each in runs(tmp_path, "kl")] == ["first"]
    text = capsys.readouterr().out
    assert "second" in text and "failed" in text and "first try" in text
    assert runs(tmp_path, "none") == []
    refused("not found; give a folder with runs", runs, tmp_path / "nowhere")


def test_newest_score_is_the_last_measured() -> None:
    rows: list[dict[str, Any]] = [
        {"version": 1, "eval/Nim-v0/expert/sampled/score": 0.25},
        {"version": 2, "exploit/Kuhn/low": 0.1, "exploit/Kuhn/high": 0.125},
        {"version": 1, "eval/Nim-v0/expert/sampled/score": None},
    ]
    assert newest_score(RunSummary.of(rows)) == "exploitability 0.125"
    assert newest_score(RunSummary.of(rows[:1])) == "0.25 against expert"
    assert newest_score(RunSummary()) == ""


def test_run_name_is_the_folder_name(here: Path) -> None:
    config = make_config(tracking={"name": "first try", "dashboard": "off"})
    assert make_folder(config).root == Path("outputs/first try")
    assert make_folder(config).root == Path("outputs/first try-2")
    assert make_tracker(here / "x", config).view.name == "first try"
    for name in ("a/b", "../x", "", ".hidden", "x" * 81):
        refused("tracking.name = .*use 1 to 80 letters", make_config, tracking={"name": name})
    assert make_config(tracking={"tags": "kl"}).tracking.tags == ["kl"]


def test_failed_best_link_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = make_tracker(tmp_path)
    monkeypatch.setattr(Path, "symlink_to", lambda *_: 1 / 0)
    tracker.name_best(0)
    tracker.name_best(1)
    assert printed(tracker).count("checkpoints/best cannot be written") == 1


def test_best_version_is_linked_and_found(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.name_best(None)
    folder.config.write_text("{}")
    for version in range(4):
        folder.checkpoint(version).mkdir(parents=True)
    refused("the best version is not recorded", checkpoint_of, folder, "best")
    folder.name_best(1)
    folder.name_best(2)
    assert checkpoint_of(folder, "best") == 2 and folder.versions() == [0, 1, 2, 3]
    assert folder.best.resolve() == folder.checkpoint(2).resolve()
    (tmp_path / "train").mkdir()
    moved = tmp_path.with_name("elsewhere")
    shutil.copytree(tmp_path, moved)  # copies the linked folder
    folder = RunFolder(moved)
    assert folder.best_version is None
    folder.name_best(2)
    assert folder.best_version == 2
    folder.rewind(1, {})
    assert folder.best_version is None and not folder.best.is_symlink()
