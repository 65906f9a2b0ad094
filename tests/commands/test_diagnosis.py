"""`unstable doctor RUN_DIR`: what a run does, waits for and has come to, by its folder alone."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.mistakes import refused
from tests.helpers.tracking import make_tracker
from unstable.cli import run
from unstable.config import ConfigError
from unstable.records.folder import RunFolder
from unstable.types.processes import Waits


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.root.mkdir()
    folder.config.write_text("{}")
    return folder


def put(folder: RunFolder, **changes: Any) -> None:
    now = time.time()
    state = {
        **{"state": "running", "reason": "", "host": socket.gethostname(), "pid": os.getpid()},
        **{"started": now - 500, "written": now, "moved": now - 2},
        "phase": {"name": "playing", "done": 12, "total": 64, "since": now - 7},
        "waits": [{"what": "actor-0: 8 train games", "since": now - 6}],
        **{"processes": {"actor-0": 7}, "version": 3, "versions": 8, "failures": 0},
    }
    folder.status.write_text(json.dumps(state | changes))


def said(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, str]]:
    code = run(["doctor", str(folder.root)])
    lines = capsys.readouterr().out.splitlines()
    return code, {line[:11].strip(): line[11:] for line in lines}


def checkpoint(folder: RunFolder, version: int = 3) -> None:
    folder.checkpoint(version).mkdir(parents=True)


def test_running_run(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    put(folder)
    checkpoint(folder)
    code, lines = said(folder, capsys)
    assert code == 0
    assert lines["state"] == f"running: process {os.getpid()} on {socket.gethostname()}"
    assert lines["phase"] == "playing 12/64 · 7 s"
    assert lines["waits for"] == "actor-0: 8 train games · 6 s"
    assert lines["progress"] == "2 s ago"
    assert lines["version"] == "3 of 8"
    assert lines["checkpoint"].startswith("3, ")
    assert lines["next"] == "nothing to do"


def test_sft_run_resumes_with_sft(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    folder.examples.touch()
    checkpoint(folder)
    code, lines = said(folder, capsys)
    assert (code, lines["state"]) == (0, "unknown: no state.json")
    assert lines["next"] == f"to resume: unstable sft --resume {folder.root}"
    folder.adapter.mkdir()
    code, lines = said(folder, capsys)
    assert (code, lines["state"]) == (0, f"ended: its adapter is in {folder.adapter}")


def test_long_pause_is_reported(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    put(folder, moved=time.time() - 300)
    assert said(folder, capsys)[1]["progress"] == "5 min 00 s ago, unusually long"


def test_run_whose_process_died(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    put(folder, pid=process.pid, written=time.time() - 90)
    checkpoint(folder)
    code, lines = said(folder, capsys)
    assert code == 1
    assert lines["state"].startswith(f"died: process {process.pid} no longer exists; nothing was")
    assert lines["next"] == f"to resume: unstable train --resume {folder.root}"


def test_stopped_process(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        process.send_signal(signal.SIGSTOP)
        put(folder, pid=process.pid, written=time.time() - 90)
        code, lines = said(folder, capsys)
        put(folder, pid=process.pid, pid_started=1, written=time.time() - 90)
        assert said(folder, capsys)[1]["state"].startswith("died")  # another process has its id
    finally:
        process.kill()
        process.wait()
    assert code == 1 and lines["state"].startswith(f"stopped: process {process.pid} exists")
    assert lines["next"].startswith(f"kill -CONT {process.pid}")


def test_run_on_another_host(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    put(folder, host="elsewhere", written=time.time() - 3)
    assert said(folder, capsys)[1]["state"].startswith("running: ")
    put(folder, host="elsewhere", written=time.time() - 90)
    code, lines = said(folder, capsys)
    assert code == 1 and "nothing was written for 1 min 30 s on elsewhere" in lines["state"]


@pytest.mark.parametrize(
    "word, reason, code, then",
    [
        ("ended", "all updates made", 0, "unstable eval "),
        ("interrupted", "", 0, "to resume: unstable train --resume "),
        ("failed", "no space is left", 1, "to resume: unstable train --resume "),
    ],
)
def test_run_that_has_ended(
    word: str,
    reason: str,
    code: int,
    then: str,
    folder: RunFolder,
    capsys: pytest.CaptureFixture[str],
) -> None:
    put(folder, state=word, reason=reason, written=time.time() - 1e6)
    checkpoint(folder)
    given, lines = said(folder, capsys)
    assert (given, lines["state"]) == (code, f"{word}: {reason}" if reason else word)
    assert lines["next"].startswith(then)


def test_earlier_errors_are_ignored(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    """An error from before it was resumed; and of a run that ended, what it did last."""
    folder.log("loop").parent.mkdir()
    folder.log("loop").write_text("2026-11-22 10:00:00,001 ERROR   unstable: the first\n")
    put(folder)
    assert "error" not in said(folder, capsys)[1]
    put(folder, started=0.0)
    assert "error" in said(folder, capsys)[1]
    put(folder, state="ended", started=0.0)
    assert not {"error", "phase"} & said(folder, capsys)[1].keys()


def test_last_error_of_each_log(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    put(folder, started=0.0)
    folder.log("loop").parent.mkdir()
    folder.log("loop").write_text(
        "2026-11-22 10:00:00,001 ERROR   unstable: the first\n"
        "2026-11-22 10:00:01,001 ERROR   unstable: the run failed\n"
        "Traceback (most recent call last):\n"
        '  File "x.py", line 1, in f\n'
        "ValueError: no such square\n"
        "2026-11-22 10:00:02,001 WARNING unstable: not this\n"
    )
    folder.log("learner").write_text("2026-11-22 10:00:02,001 INFO    unstable: fine\n")
    assert said(folder, capsys)[1]["error"] == (
        "loop.log: 2026-11-22 10:00:01,001 ERROR unstable: the run failed "
        "(ValueError: no such square)"
    )


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[" * 100_000,
        "[1]",
        '{"phase": 1, "waits": [1], "state": {}, "pid": [], "written": "x"}',
        '{"state": "running", "pid": 1e400, "waits": {"a": 1}, "phase": {"name": "\\u001b[2J"}}',
    ],
)
def test_invalid_state_prints_no_escapes_and_raises_nothing(
    content: str, folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.status.write_text(content)
    run(["doctor", str(folder.root)])
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("number", ["NaN", "1e400", "-1e400", "1" + 400 * "0"])
@pytest.mark.parametrize("state", ["running", "interrupted"])
def test_invalid_numbers_in_a_state_are_ignored(
    number: str, state: str, folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    put(folder, state=state, moved=None, pid=None)
    content = json.loads(folder.status.read_text())
    places = [content["phase"], content["phase"], content["phase"], content["waits"][0], content]
    for place, name in zip(places, ("since", "done", "total", "since", "moved"), strict=True):
        place[name] = "NUMBER"
    folder.status.write_text(json.dumps(content).replace('"NUMBER"', number))
    assert said(folder, capsys)[1]["phase"] == "playing · 0 s"
    content["written"] = "NUMBER"
    folder.status.write_text(json.dumps(content).replace('"NUMBER"', number))
    assert said(folder, capsys)[1]["state"].split(":")[0] == (
        "died" if state == "running" else state
    )


def test_state_written_in_the_future(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    put(folder, written=time.time() + 20)  # clocks of two machines may differ by a little
    assert said(folder, capsys)[1]["state"].startswith("running")
    put(folder, written=time.time() + 7210)
    _, lines = said(folder, capsys)
    assert lines["state"] == "unknown: state.json is 2 h 00 min ahead of this machine's clock"
    assert lines["next"] != "nothing to do"


def test_missing_run_and_extra_options_are_rejected(tmp_path: Path) -> None:
    refused("contains no config.yaml; give a run folder", run, ["doctor", str(tmp_path)])
    with pytest.raises(ConfigError, match="^--loop.steps: doctor RUN_DIR takes no other options"):
        run(["doctor", str(tmp_path), "--steps", "3"])


def test_tracker_updates_the_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tracker, folder = make_tracker(tmp_path), RunFolder(tmp_path)
    folder.config.write_text("{}")
    tracker.phase("updating")
    tracker.waits.processes["learner"] = 7
    with tracker.refreshing(), tracker.waits.on("learner: update"):
        deadline = time.monotonic() + 20
        while "learner: update" not in (
            folder.status.read_text() if folder.status.exists() else ""
        ):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        code, lines = said(folder, capsys)
        assert code == 0 and lines["phase"].startswith("updating")
        assert lines["waits for"].startswith("learner: update")
    tracker.finish("all updates made")
    capsys.readouterr()
    assert said(folder, capsys)[1]["state"] == "ended: all updates made"
    assert json.loads(folder.status.read_text())["processes"] == {"learner": 7}
    tracker.close()


def test_run_continues_if_its_state_cannot_be_written(tmp_path: Path) -> None:
    tracker = make_tracker(tmp_path)
    RunFolder(tmp_path).status.mkdir()
    with tracker.refreshing():
        pass
    tracker.finish("all updates made")


def test_open_waits_are_listed_longest_first() -> None:
    waits = Waits()
    with waits.on("a"):
        time.sleep(0.01)
        with pytest.raises(KeyError), waits.on("b"):
            assert [wait.what for wait in waits.open()] == ["a", "b"]
            moved = waits.moved
            time.sleep(0.01)
            raise KeyError
        assert [wait.what for wait in waits.open()] == ["a"] and waits.moved > moved
    assert waits.open() == []
