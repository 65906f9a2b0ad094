"""`unstable train` with a real model in real processes: killed, interrupted, resumed, forked."""

import json
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
import yaml

from tests.helpers.cli import (
    PATIENCE_S,
    children,
    command_line,
    ended,
    goes_on,
    no_developers_lines,
    run_locally,
    start,
    wait_for,
)
from tests.helpers.loop import played
from tests.helpers.mistakes import refused
from tests.helpers.resume import TIMED, weights
from tests.helpers.screens import PseudoTerminal
from unstable.cli import run
from unstable.config import ConfigError
from unstable.records.folder import RunFolder
from unstable.records.reading import read_rows

STEPS = 12
"""Enough that a fast machine has not made all of them before the last kill."""
EVAL_GAMES = 100
"""Enough that a signal arrives before the last evaluation ends."""
LONG = ["--steps", str(STEPS), "--loop.mode", "sync", "--num_actors", "2"]
LONG += ["--eval.every", str(STEPS), "--eval.games", str(EVAL_GAMES)]


def killed(process: "subprocess.Popen[str]") -> str:
    """Kill the run's driver, which ends its processes; returns its output."""
    family = children(process)
    process.kill()
    output, _ = process.communicate(timeout=PATIENCE_S)
    _, alive = psutil.wait_procs(family, timeout=60)
    assert not [each for each in alive if "ray::" in command_line(each)], "left behind"
    return output


@pytest.mark.slow
@pytest.mark.tables("loop rotating", 1)
@pytest.mark.fault("an actor crashes")
def test_killed_run_resumes_to_the_uninterrupted_result(project: Path) -> None:
    """Kill one of two actors, then the driver, then close the terminal of the resumed run."""
    run_locally(project, "train", "--config", "small.yaml", "--run_dir", "whole", *LONG)
    one, two = RunFolder(project / "whole"), RunFolder(project / "run")

    process, log = start(project, *LONG), two.log("loop")
    children(process, "ActorProcess")[-1].kill()
    wait_for(lambda: "died and is restarted" in log.read_text(), process)
    goes_on(project, process, updates=2)
    assert "died and is restarted; its games are replayed" in killed(process)
    closed_in_last_evaluation(project, two)
    done = run_locally(project, "train", "--resume", "run")
    assert f"the run resumes from version {STEPS}" in done.stderr
    assert no_developers_lines(done.stdout + done.stderr)

    assert weights(one, STEPS) == weights(two, STEPS)
    metrics = [
        [
            {name: v for name, v in row.items() if not name.startswith(("learn/loss", "rating/"))}
            for row in read_rows(folder.metrics)
        ]
        for folder in (one, two)
    ]
    assert [row["version"] for row in metrics[1]] == [*range(STEPS + 1)]
    assert metrics[1][-1]["eval/TicTacToe-v0/random/sampled/gain"] is not None
    same = [n for n in metrics[0][-1] if not n.startswith((*TIMED, "collect/engine", "learn/tok"))]
    for mine, other in zip(*metrics, strict=True):
        assert {n: mine.get(n) for n in same} == {n: other.get(n) for n in same}
    for purpose in ("train", "eval"):
        games = (played(folder, purpose) for folder in (one, two))
        mine, others = (sorted(each, key=lambda g: (g["version"], g["game"])) for each in games)
        assert others == mine != []  # files have them in order of completion


def closed_in_last_evaluation(project: Path, folder: RunFolder) -> None:
    """Resume the run at a terminal, and close the terminal while the last version is evaluated.

    The run shuts down in order, writes its report and leaves no child process.
    """
    with PseudoTerminal(project, 80, 24, "train", "--resume", "run") as terminal:
        deadline = time.monotonic() + PATIENCE_S
        while not folder.games("eval", STEPS).exists():
            assert terminal.process.poll() is None and time.monotonic() < deadline, terminal.text
            terminal.watch(0.05)
        family = psutil.Process(terminal.process.pid).children(recursive=True)
        terminal.hang_up()
        assert terminal.process.wait(timeout=PATIENCE_S) == 143
    assert "the run resumes from version " in terminal.text
    psutil.wait_procs(family, timeout=60)
    assert not [child for child in family if child.is_running()]
    assert [row["version"] for row in read_rows(folder.metrics)] == [*range(STEPS)]
    assert json.loads(folder.status.read_text())["state"] == "interrupted"
    assert (folder.root / "report.html").is_file()
    assert "Traceback" not in folder.log("loop").read_text()


@pytest.mark.slow
@pytest.mark.tables("loop rotating", 3)
def test_ctrl_c_finishes_the_update_and_prints_how_to_resume(project: Path) -> None:
    """Updates take seconds here, so that the signal arrives during one."""
    slow = ["--learner.epochs", "20", "--learner.micro_batch_size", "1", "--loop.mode", "async"]
    process = start(project, "--steps", "100000", *slow)
    folder = RunFolder(project / "run")
    phase = lambda: json.loads(folder.status.read_text())["phase"]["name"]  # noqa: E731
    wait_for(lambda: phase() == "updating", process)
    output = ended(process, 130, signal.SIGINT)
    assert "The run ended: interrupted" in output
    assert "to resume   unstable train --resume run" in output
    assert (project / "run/report.html").is_file()
    last = folder.versions()[-1]
    if begun := re.search(r"cleanly once update (\d+) is finished", output):
        assert folder.state(int(begun[1])).is_file() and last == int(begun[1])
    words = ["--steps", str(last + 1), "--eval.games", "4"]
    run_locally(project, "train", "--resume", "run", *words)
    assert [row["version"] for row in read_rows(folder.metrics)] == [*range(last + 2)]
    assert yaml.safe_load(folder.config.read_text())["loop"]["steps"] == last + 1
    again = ["train", "--resume", str(folder.root)]
    with pytest.raises(ConfigError, match=r"learner.learning_rate = 1.0: cannot change on resume"):
        run([*again, "--steps", str(last + 2), "--learner.learning_rate", "1"])
    refused(rf"= {last + 1}: the run has already made {last + 1} updates; s", run, again)
