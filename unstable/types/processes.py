"""Identity of processes, and calls to them that are in progress."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

_STARTED = 19  # index of the start time among the fields of /proc/PID/stat after the name


class ProcessId(NamedTuple):
    """Unique identity of a process; a pid alone is reused after the process's end.

    ProcessId("node-1", "6f3c.../4026531836", pid=4127, started=884301)
    """

    host: str  # name of the host, for display
    space: str  # boot id and container in which the pid is valid
    pid: int
    started: int  # clock ticks after the host's boot

    @classmethod
    def own(cls) -> Self:
        """Return the id of this process."""
        pid = os.getpid()
        return cls(socket.gethostname(), space(), pid, started(pid) or 0)

    @property
    def is_running(self) -> bool:
        """True if the process is on this host and has not ended."""
        return self.space == space() and started(self.pid) == self.started

    def send(self, number: signal.Signals) -> bool:
        """Send the process a signal; return False, without effect, if it is gone or elsewhere."""
        if not self.is_running:
            return False
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        except (OSError, AttributeError):  # forbidden, or not Linux
            return self._send_by_number(number)
        try:
            # The handle refers to one process from now on, so check its identity again.
            if not self.is_running:
                return False
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
                return True
            return False
        finally:
            os.close(handle)

    def _send_by_number(self, number: signal.Signals) -> bool:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
            return True
        return False


def space() -> str:
    """Return an id of the space in which pids are valid: host's boot and container's namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return socket.gethostname()


def started(pid: int) -> int | None:
    """Return the clock ticks from boot to a process's start; None if the process does not run."""
    try:
        # State and numbers follow the name, which may contain any character.
        stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if stat[0] in (b"Z", b"X") else int(stat[_STARTED])


class Wait(NamedTuple):
    """An operation in progress and its start. Wait("learner: update", since=1763800000.0)"""

    what: str
    since: float  # in seconds since the epoch


class Waits:
    """Operations that the run's loop waits for, and the time of the last progress.

    `processes` are the pids of a run's processes, by name.
    """

    def __init__(self) -> None:
        self.moved = time.time()
        self.processes: dict[str, int] = {}
        self._open: dict[int, Wait] = {}
        self._count = 0

    @contextlib.contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Register `what` as waited for, for the duration of the block."""
        self.move()
        self._count += 1
        number, self._open[self._count] = self._count, Wait(what, self.moved)
        try:
            yield
        finally:
            del self._open[number]
            self.move()

    def move(self) -> None:
        """Record progress at the current time."""
        self.moved = time.time()

    def open(self) -> list[Wait]:
        """Return the operations that are waited for, the oldest first."""
        return sorted(self._open.copy().values(), key=lambda wait: wait.since)
