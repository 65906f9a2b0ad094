"""`unstable train` with a real model in real processes: killed, interrupted, resumed, forked."""

import json
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path

import psutil
import pytest
import yaml

from tests.helpers.cli import children, no_developers_lines, rows, start, unstable
from tests.helpers.loop import played
from tests.helpers.resume import TIMED, weights
from tests.helpers.screens import PseudoTerminal
from unstable.records.folder import RunFolder
from unstable.records.reading import read_rows

KILLS = 3
STEPS = 20
"""So many that a fast machine has not made them all before the last kill."""
LONG = ["--steps", str(STEPS), "--loop.mode", "sync", "--eval.every", "10"]


def killed(project: Path, *arguments: str, after_s: float, config: bool = True) -> None:
    """Start the run, or go on with it, and kill its driver, and its processes by that."""
    process = start(project, *arguments, config=config)
    family = children(process)
    time.sleep(after_s)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    gone, alive = psutil.wait_procs(family, timeout=60)
    assert not [each for each in alive if "ray::" in " ".join(each.cmdline())], "left behind"


@pytest.mark.slow
def test_a_run_that_is_killed_three_times_ends_as_one_that_was_not(project: Path) -> None:
    whole = unstable(project, "train", "--config", "small.yaml", "--run_dir", "whole", *LONG)
    assert whole.returncode == 0, whole.stderr
    chance = random.Random("three kills")
    killed(project, *LONG, after_s=chance.random())
    for _ in range(KILLS - 1):
        killed(project, "--resume", "run", config=False, after_s=chance.random())
    done = unstable(project, "train", "--resume", "run")
    assert done.returncode == 0, done.stderr
    assert "the run goes on from version " in done.stderr
    assert no_developers_lines(done.stdout + done.stderr)
    one, two = RunFolder(project / "whole"), RunFolder(project / "run")
    assert weights(one, STEPS) == weights(two, STEPS)
    metrics = [
        [
            {name: v for name, v in row.items() if not name.startswith(("learn/loss", "rating/"))}
            for row in read_rows(folder.metrics)
        ]
        for folder in (one, two)
    ]
    assert [row["version"] for row in metrics[1]] == [*range(STEPS + 1)]
    same = [n for n in metrics[0][-1] if not n.startswith((*TIMED, "collect/engine", "learn/tok"))]
    for mine, other in zip(*metrics, strict=True):
        assert {n: mine.get(n) for n in same} == {n: other.get(n) for n in same}

    longer = ["--steps", str(STEPS + 1), "--eval.games", "4"]
    more = unstable(project, "train", "--resume", "run", *longer)
    assert more.returncode == 0, more.stderr
    assert two.versions()[-1] == STEPS + 1
    assert yaml.safe_load(two.config.read_text())["loop"]["steps"] == STEPS + 1
    again = unstable(project, "train", "--resume", "run", "--learner.learning_rate", "1")
    assert again.returncode == 2
    assert "learner.learning_rate = 1.0: cannot change in a run that goes on" in again.stderr


@pytest.mark.slow
def test_a_synchronous_run_whose_actor_is_killed_is_the_one_whose_was_not(project: Path) -> None:
    """One of two actors, in the midst of it."""
    two = [*LONG, "--num_actors", "2"]
    whole = unstable(project, "train", "--config", "small.yaml", "--run_dir", "whole", *two)
    assert whole.returncode == 0, whole.stderr
    process = start(project, *two)
    children(process, "ActorProcess")[-1].kill()
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 0, output
    assert "died and is started again; its games are played again" in output
    one, other = RunFolder(project / "whole"), RunFolder(project / "run")
    assert weights(one, STEPS) == weights(other, STEPS)
    for purpose in ("train", "eval"):
        games = (played(folder, purpose) for folder in (one, other))
        mine, others = (sorted(each, key=lambda g: (g["version"], g["game"])) for each in games)
        assert others == mine != []  # on file they are in the order of their ends


@pytest.mark.slow
def test_ctrl_c_finishes_the_update_and_says_how_to_go_on(project: Path) -> None:
    """Updates take seconds here, so that the signal comes in the midst of one."""
    slow = ["--learner.epochs", "20", "--learner.micro_batch_size", "1", "--loop.mode", "sync"]
    process = start(project, "--steps", "100", *slow)
    time.sleep(1)
    began = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130, output
    assert no_developers_lines(output)
    assert "to go on    unstable train --resume run" in output
    assert time.monotonic() - began < 60
    folder = RunFolder(project / "run")
    last = folder.versions()[-1]
    if begun := re.search(r"in order once update (\d+) is finished", output):
        assert folder.state(int(begun[1])).is_file() and last == int(begun[1])
    done = unstable(project, "train", "--resume", "run", "--steps", str(last + 1))
    assert done.returncode == 0, done.stderr
    assert [row["version"] for row in read_rows(folder.metrics)] == [*range(last + 2)]


@pytest.mark.slow
def test_a_run_that_was_ended_in_its_last_evaluation_goes_on_with_it(project: Path) -> None:
    process = start(project, "--eval.games", "1000")  # after versions 0 and 2, the last
    folder, deadline = RunFolder(project / "run"), time.monotonic() + 120
    while not folder.games("eval", 2).exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143, output
    assert "to go on    unstable train --resume run" in output
    assert [row["version"] for row in read_rows(folder.metrics)] == [0, 1]

    done = unstable(project, "train", "--resume", "run")
    assert done.returncode == 0, done.stderr
    assert "the run goes on from version 2" in done.stderr
    assert [row["version"] for row in read_rows(folder.metrics)] == [0, 1, 2]
    assert read_rows(folder.metrics)[-1]["eval/TicTacToe-v0/random/sampled/gain"] is not None
    assert len(rows(folder.games("eval", 2))) == 1000
    again = unstable(project, "train", "--resume", "run")
    assert again.returncode == 2
    assert "loop.steps = 2: the run has made 2 updates; give --steps a higher" in again.stderr


@pytest.mark.slow
def test_a_fork_begins_where_its_origin_was(project: Path) -> None:
    done = unstable(project, "train", "--config", "small.yaml", "--run_dir", "run")
    assert done.returncode == 0, done.stderr
    forked = unstable(project, "train", "--fork", "run@1", "--run_dir", "new", "--steps", "1")
    assert forked.returncode == 0, forked.stderr
    one, two = RunFolder(project / "run"), RunFolder(project / "new")
    assert weights(two, 0) == weights(one, 1)
    config = yaml.safe_load(two.config.read_text())
    assert config["model"]["init"] == config["learner"]["state"]
    assert config["model"]["init"].endswith("run/checkpoints/000001")
    shutil.rmtree(one.checkpoint(1))
    later = unstable(project, "train", "--resume", "new", "--steps", "2")
    assert later.returncode == 0, later.stderr  # its origin may be gone
    (one.checkpoint(2) / "learner.pt").unlink()
    lacks = unstable(project, "train", "--fork", "run@2", "--run_dir", "third")
    assert lacks.returncode == 2
    assert "its optimizer is not kept any more" in lacks.stderr


@pytest.mark.slow
def test_a_run_whose_terminal_is_closed_ends_in_order(project: Path) -> None:
    """With a summary nobody sees, and without anybody left behind."""
    run = ["train", "--config", "small.yaml", "--run_dir", "run", "--steps", "100000"]
    metrics = project / "run/metrics.jsonl"
    with PseudoTerminal(project, 80, 24, *run, "--eval.every", "0") as terminal:
        deadline = time.monotonic() + 120
        while not (metrics.is_file() and len(read_rows(metrics)) > 1):
            assert terminal.process.poll() is None and time.monotonic() < deadline, terminal.text
            terminal.watch(0.2)
        family = psutil.Process(terminal.process.pid).children(recursive=True)
        terminal.hang_up()
        assert terminal.process.wait(timeout=90) == 143
    psutil.wait_procs(family, timeout=30)
    assert not [child for child in family if child.is_running()]
    state = json.loads((project / "run/state.json").read_text())
    assert state["state"] == "interrupted"
    assert (project / "run/report.html").is_file()
    assert "Traceback" not in (project / "run/logs/loop.log").read_text()
