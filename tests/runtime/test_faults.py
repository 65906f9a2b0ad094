"""Faults caused for real in whole runs: each has the outcome that docs/reliability.md declares."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers.cli import (
    children,
    ended,
    goes_on,
    in_process,
    ran,
    run_locally,
    start,
    wait_for,
)
from unstable.commands.resume import find_point
from unstable.records.folder import RunFolder

pytestmark = pytest.mark.slow
LONG = ("--steps", "100000", "--eval.every", "0")
STALL_S = 10.0
"""Long enough for an update and a game's turns on a busy machine; tests wait for it twice."""
STALL = ("--loop.stall_timeout", str(STALL_S), "--games.0.turn_timeout", "4")


def error_line(output: str) -> str:
    (line,) = (line for line in output.splitlines() if line.startswith("error: "))
    return line


def whole(run_dir: Path) -> None:
    """No checkpoint is partial, and the newest is complete."""
    folder = RunFolder(run_dir)
    checkpoints = [path.name for path in folder.checkpoints.iterdir()]
    assert all(name.isdigit() for name in checkpoints), checkpoints
    point = find_point(folder, "--resume")
    assert point.broken == () and folder.versions()[-1] - point.version <= 1
    newest = folder.checkpoint(point.version)
    assert {path.name for path in newest.iterdir()} >= {
        *("adapter_model.safetensors", "adapter_config.json", "learner.pt", "run_state.json")
    }


def state(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "state.json").read_text())


def stop_actor(process: "subprocess.Popen[str]", log: Path) -> None:
    """Stop the actor; wait until it is detected and restarted."""
    children(process, "ActorProcess")[0].suspend()
    wait_for(lambda: "actor-0 died and is restarted" in log.read_text(), process)
    silent = f"actor-0 made no progress within loop.stall_timeout = {STALL_S:g} s"
    assert silent in log.read_text()


@pytest.mark.fault("an actor crashes", "a learner rank crashes", "W&B or another sink fails")
def test_run_survives_actor_and_wandb_and_resumes_after_learner(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Suspend the actor, kill the learner, resume, kill W&B's process, suspend the learner."""
    process = start(project, *LONG, *STALL)
    stop_actor(process, project / "run/logs/loop.log")
    goes_on(project, process, updates=2)
    children(process, "LearnerProcess")[0].kill()
    line = error_line(ended(process, 1))
    assert "the learner's process died" in line and "ran out of memory" in line
    assert "then: unstable train --resume run; details in run/logs/loop.log" in line
    whole(project / "run")
    last = state(project / "run")
    assert last["state"] == "failed" and last["reason"] == line.removeprefix("error: ")

    monkeypatch.setenv("WANDB_MODE", "offline")
    process = start(project, "--resume", "run", "--wandb", "a project", config=False)
    services = children(process, "wandb-core") + children(process, "wandb_core")
    assert services
    for service in services:
        service.kill()
    goes_on(project, process, updates=5)
    stop_learner(project / "run", process)
    output = ended(process, 1)
    assert output.count("Weights & Biases cannot be written") == 1
    line = error_line(output)
    assert "did not answer" in line and f"loop.stall_timeout = {STALL_S:g} s" in line
    whole(project / "run")


def stop_learner(run_dir: Path, process: "subprocess.Popen[str]") -> None:
    """Stop the learner; `state.json` shows meanwhile that the run waits for it."""
    children(process, "LearnerProcess")[0].suspend()
    stopped = time.time()

    def waits() -> bool:
        now = state(run_dir)  # an earlier file is from the start
        return now["written"] > max(stopped, now["moved"]) + 3

    wait_for(waits, process)
    now = state(run_dir)
    assert now["state"] == "running" and now["waits"][0]["what"].startswith("learner: ")
    assert set(now["processes"]) == {"actor-0", "learner"}


@pytest.fixture
def disk(project: Path) -> Iterator[Path]:
    """A user's folder on a file system of six megabytes, which only root can mount."""
    disk = project / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(disk)]
    is_mounted = not os.getuid() and not subprocess.run(mount, capture_output=True).returncode
    shutil.copy(project / "small.yaml", disk)
    yield disk
    if is_mounted:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.tables("loop rotating", 0)
@pytest.mark.fault("disk full", "run folder removed")
def test_full_disk_or_lost_folder_ends_the_run(disk: Path) -> None:
    """Each has its own message; the run resumes after space is freed."""
    process = start(disk, *LONG)
    if disk.is_mount():
        fill(disk)
        line = error_line(ended(process, 1))
        assert "cannot be written" in line and "No space left on device" in line
        assert "free disk space; then: unstable train --resume run" in line
        (disk / "filler").unlink()
        whole(disk / "run")
        process = start(disk, "--resume", "run", config=False)
    for _ in range(100):  # the run may write during the removal
        shutil.rmtree(disk / "run", ignore_errors=True)
        if not (disk / "run").exists():
            break
    line = error_line(ended(process, 1))
    assert "run was deleted" in line
    assert not (disk / "run").exists()
    if not disk.is_mount():
        pytest.skip("only root can mount a file system; the full disk was skipped")


def fill(disk: Path) -> None:
    """Leave no space for a checkpoint; repeat if the run has written meanwhile."""
    filler = disk / "filler"
    while not filler.exists():
        try:
            filler.write_bytes(bytes(max(0, shutil.disk_usage(disk).free - 300_000)))
        except OSError:
            filler.unlink()


REWARD = """
def stuck(result, seat):
    while True:
        pass
"""


@pytest.mark.one_core
@pytest.mark.fault("a reward term hangs")
def test_hanging_reward_term_fails_games_then_the_run(project: Path) -> None:
    (project / "mine.py").write_text(REWARD)
    config = yaml.safe_load((project / "small.yaml").read_text())
    config["judges"] = {"stuck": {"kind": "mine:stuck", "timeout": 1}}
    config["buffer"] = {"rewards": [{"term": "stuck"}]}
    config["loop"]["max_failures"] = 2
    (project / "mine.yaml").write_text(yaml.safe_dump(config))
    done = run_locally(project, "train", "--config", "mine.yaml", "--run_dir", "run", code=1)
    line = error_line(done.stderr)
    assert "reward term stuck exceeded timeout = 1 s" in line
    assert "loop.max_failures = 2" in line
    assert "while True" in (project / "run/logs/loop.log").read_text()


GAME = """
import textarena


class Stuck(textarena.Env):
    def reset(self, num_players, seed=None):
        while True:
            pass

    def step(self, action):
        pass
"""


@pytest.mark.one_core
@pytest.mark.fault("a start-up check fails")
def test_game_that_hangs_at_start_is_a_config_error(project: Path) -> None:
    (project / "mine.py").write_text(GAME)
    game = ("--games.0.env", "mine:Stuck", "--games.0.timeout", "2")
    done = in_process(project, "train", "--config", "small.yaml", *game)
    assert done.returncode == 2
    assert error_line(done.stderr) == (
        "error: games.0.env = 'mine:Stuck': its check timed out after games.0.timeout = 2 s; fix "
        "the environment or increase games.0.timeout"
    )


BLOCKED_LOG = """
import logging, sys
from pathlib import Path
from unstable.records.folder import RunFolder
from unstable.records.logs import setup_logging

folder = RunFolder(Path("run"))
folder.log("x").parent.mkdir(parents=True)
folder.log("x").symlink_to("/dev/full")
setup_logging(folder, "x")
logging.getLogger("unstable").error("this cannot be written")
print("alive")
"""


@pytest.mark.one_core
def test_unwritable_log_prints_nothing(tmp_path: Path) -> None:
    done = ran([sys.executable, "-c", BLOCKED_LOG], tmp_path)
    assert (done.stdout, done.stderr) == ("alive\n", "")
