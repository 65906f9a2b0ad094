"""A command as a child process: what it may use, and that it does not outlive its parent."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from unstable.processes import child
from unstable.processes.child import Child

PARENT = """
import os, subprocess, sys, time
words = [sys.executable, "-P", sys.argv[1], str(os.getpid()), "0", "--", "/usr/bin/sleep", "600"]
own = subprocess.Popen(words)
print(own.pid, flush=True)
time.sleep(600)
"""


def ended(one: Child) -> int:
    deadline = time.monotonic() + 60
    while (code := one.exit_code) is None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return code


def test_child_runs_command_and_appends_to_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    assert ended(Child(["--version"], log)) == 0
    assert ended(Child(["nonsense"], log, variables={"A": "1"})) == 2
    before, version, error = log.read_text().splitlines()
    assert before == "before" and version.startswith("unstable ")
    assert error == "error: No such command 'nonsense'; see unstable --help"


def test_child_inherits_cores_and_exits_with_its_parent() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, child.__file__], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    own = psutil.Process(int(parent.stdout.readline()))
    deadline = time.monotonic() + 60
    while own.name() != "sleep":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert os.sched_getaffinity(own.pid) == {0}
    parent.kill()
    parent.communicate()
    psutil.wait_procs([own], timeout=60)
    assert not own.is_running() or own.status() == psutil.STATUS_ZOMBIE


def test_child_does_not_start_without_its_parent(tmp_path: Path) -> None:
    made = tmp_path / "made"
    words = [sys.executable, "-P", child.__file__, "1", "", "--", "/usr/bin/touch", str(made)]
    assert subprocess.run(words, check=False).returncode == 0
    assert not made.exists()


def test_sigint_ends_child_whose_parent_ignores_it(tmp_path: Path) -> None:
    """SIGINT ends the child even if the parent ignores it, like a background job of a shell."""
    code = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_IGN); "
        "os.execv(sys.executable, [sys.executable, '-P', *sys.argv[1:]])"
    )
    words = [child.__file__, str(os.getpid()), "", "--", "/usr/bin/sleep", "600"]
    process = subprocess.Popen([sys.executable, "-c", code, *words])
    one = psutil.Process(process.pid)
    deadline = time.monotonic() + 60
    while one.name() != "sleep":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == -signal.SIGINT
