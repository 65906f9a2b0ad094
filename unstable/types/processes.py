"""Processes as they are known from outside: who each is, and what is waited for."""

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, Self

_STARTED = 19  # the start's place among what `stat` of /proc says behind a process's name


class ProcessId(NamedTuple):
    """A process and no other: its id is given to another one when it has gone.

    ProcessId("node-1", "6f3c.../4026531836", pid=4127, started=884301)
    """

    host: str  # its name, for people
    space: str  # the host since it was booted, and the container: where the id counts
    pid: int
    started: int  # clock ticks after the host's boot

    @classmethod
    def own(cls) -> Self:
        """This process."""
        pid = os.getpid()
        return cls(socket.gethostname(), space(), pid, started(pid) or 0)

    @property
    def is_running(self) -> bool:
        """Return whether it is there, on this host, and has not ended."""
        return self.space == space() and started(self.pid) == self.started

    def send(self, number: signal.Signals) -> bool:
        """Signal it; False, and nobody is signalled, where it has gone or is elsewhere."""
        if not self.is_running:
            return False
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        except (OSError, AttributeError):  # forbidden here, or not Linux
            return self._send_by_number(number)
        try:
            # What the handle is of stays what it is, so that now is the time to look.
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
    """Return where this process's ids count: the host's boot and the container's namespace."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return socket.gethostname()


def started(pid: int) -> int | None:
    """Clock ticks from the host's boot to a process's start; None where no such process runs."""
    try:
        # Behind the name, which may hold anything: the state, then numbers.
        stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if stat[0] in (b"Z", b"X") else int(stat[_STARTED])


class Wait(NamedTuple):
    """Something that is waited for, and since when. Wait("learner: update", since=1763800000.0)"""

    what: str
    since: float  # of the clock, in seconds


class Waits:
    """Names of what the run's loop waits for, and the time when something last moved.

    `processes` are the ids of those that it waits for.
    """

    def __init__(self) -> None:
        self.moved = time.time()
        self.processes: dict[str, int] = {}
        self._open: dict[int, Wait] = {}
        self._count = 0

    @contextlib.contextmanager
    def on(self, what: str) -> Iterator[None]:
        """Wait for something for the duration of the block."""
        self.move()
        self._count += 1
        number, self._open[self._count] = self._count, Wait(what, self.moved)
        try:
            yield
        finally:
            del self._open[number]
            self.move()

    def move(self) -> None:
        """Something has moved now."""
        self.moved = time.time()

    def open(self) -> list[Wait]:
        """List what is waited for, the longest first."""
        return sorted(self._open.copy().values(), key=lambda wait: wait.since)
