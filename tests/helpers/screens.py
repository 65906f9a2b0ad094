"""`unstable` at a pseudo-terminal: all of its output, and the content of the screen."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pyte

from tests.helpers.cli import PATIENCE_S
from tests.helpers.models import heed_interrupts

ROOT = Path(__file__).parent.parent.parent


class PseudoTerminal:
    """A process at a terminal of `columns` by `rows`. `text` is all that it has written."""

    def __init__(self, folder: Path, columns: int, rows: int, *arguments: str) -> None:
        self.text = ""
        self._seen = 0
        self._own, theirs = pty.openpty()
        self._size(columns, rows)
        variables = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from unstable.cli import main; main()", *arguments],
            cwd=folder,
            env=variables | {"TERM": "xterm-256color", "PYTHONPATH": str(ROOT)},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=_at_terminal,
        )
        os.close(theirs)
        self._is_open = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.hang_up()

    @property
    def descriptor(self) -> int:
        """File descriptor of the terminal's controlling side."""
        return self._own

    @property
    def lines(self) -> list[str]:
        """All lines so far."""
        return self.text.replace("\r\n", "\n").split("\n")

    def until(self, pattern: str, timeout_s: float = PATIENCE_S) -> str:
        """Wait for the pattern; returns the output since the last call, including the match."""
        end = time.monotonic() + timeout_s
        while (found := re.search(pattern, self.text[self._seen :])) is None:
            if not self._read(end - time.monotonic()):
                raise AssertionError(f"no {pattern!r} in {self.text[self._seen :]!r}")
        begin, self._seen = self._seen, self._seen + found.end()
        return self.text[begin : self._seen]

    def press(self, keys: str) -> None:
        """Type these keys."""
        os.write(self._own, keys.encode())

    def says(self, line: str, pattern: str = r"your action> ") -> str:
        """Type a line and return the output up to the pattern."""
        self.press(line)
        return self.until(pattern)

    def end(self, timeout_s: float = PATIENCE_S) -> int:
        """Read until the process ends; return its exit code."""
        end = time.monotonic() + timeout_s
        while self._read(end - time.monotonic()):
            pass
        return self.process.wait(timeout=60)

    def watch(self, seconds: float) -> None:
        """Read for this time."""
        end = time.monotonic() + seconds
        while self._read(end - time.monotonic()):
            pass

    def hang_up(self) -> None:
        """Close the terminal, as a person does its window."""
        if self._is_open:
            os.close(self._own)
        self._is_open = False

    def _size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._own, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self, timeout_s: float) -> bool:
        """Read the next output; False after a timeout or the end."""
        if not select.select([self._own], [], [], max(0.0, timeout_s))[0]:
            return False
        try:
            content = os.read(self._own, 2**16)
        except OSError:  # closed by the process
            return False
        self._take(content)
        return bool(content)

    def _take(self, content: bytes) -> None:
        self.text += content.decode(errors="replace")


class Screen(PseudoTerminal):
    """A terminal that draws: `screen` has its cells, `shown` their text."""

    def __init__(self, folder: Path, columns: int, rows: int, *arguments: str) -> None:
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        super().__init__(folder, columns, rows, *arguments)

    @property
    def shown(self) -> str:
        """The text visible on the screen."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def sees(self, is_there: Callable[[str], bool], timeout_s: float = PATIENCE_S) -> str:
        """Return the screen as soon as `is_there` accepts it; fails with the last screen.

        A frame comes in parts: the check waits until nothing more of it comes.
        """
        end = time.monotonic() + timeout_s
        while True:
            while time.monotonic() < end and self._read(0.1):
                pass
            if is_there(self.shown):
                return self.shown
            if not self._read(end - time.monotonic()):
                raise AssertionError(f"not seen; the screen:\n{self.shown}")

    def resize(self, columns: int, rows: int) -> None:
        """Resize the terminal, as dragging the window's corner does."""
        self.screen.resize(rows, columns)
        self._size(columns, rows)

    def _take(self, content: bytes) -> None:
        super()._take(content)
        self._stream.feed(content)


def _at_terminal() -> None:
    """Standard input is the process's own terminal, whose Ctrl-C it heeds."""
    heed_interrupts()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
