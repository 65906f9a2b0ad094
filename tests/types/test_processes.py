"""A process differs from a later one with the same id, and no other process gets its signal."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from unstable.types import processes
from unstable.types.processes import ProcessId, started

Child = subprocess.Popen[bytes]


@pytest.fixture
def child() -> Iterator[Child]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def known(child: Child) -> ProcessId:
    ticks = started(child.pid)
    assert ticks is not None
    return ProcessId.own()._replace(pid=child.pid, started=ticks)


def test_own_process_is_running() -> None:
    own = ProcessId.own()
    assert own.pid == os.getpid() and own.started > 0 and own.is_running


@pytest.mark.parametrize("pidfd", [True, False])
def test_process_gets_signal(pidfd: bool, child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    if not pidfd:

        def forbidden(_: int) -> int:
            raise PermissionError

        monkeypatch.setattr(processes.os, "pidfd_open", forbidden)
    who = known(child)
    assert who.send(signal.SIGKILL)
    assert child.wait(timeout=60) == -signal.SIGKILL
    assert not who.is_running and not who.send(signal.SIGKILL)


@pytest.mark.parametrize("change", [{"started": 1}, {"space": "another host's"}])
def test_process_with_reused_pid_gets_no_signal(change: dict[str, object], child: Child) -> None:
    who = known(child)._replace(**change)  # type: ignore[arg-type]
    assert not who.is_running and not who.send(signal.SIGKILL)
    assert child.poll() is None and known(child).is_running


def test_pid_reused_during_send_gets_no_signal(child, monkeypatch):
    """Between the check and the opening of the handle."""
    who = known(child)
    ticks = iter([who.started, who.started + 1])
    monkeypatch.setattr(processes, "started", lambda _: next(ticks))
    assert not who.send(signal.SIGKILL)
    assert child.poll() is None


def test_zombie_process_is_not_running(child: Child) -> None:
    who = known(child)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # still a zombie
    assert started(child.pid) is None and not who.is_running
