"""What a run is at, in lines, where there is no dashboard: nobody waits in silence."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

from unstable.tracking.repeated import repeated
from unstable.tracking.text import phase_line

FIRST_S = 5.0
"""The longest silence until the first update, or where there is none."""
LATER_S = 30.0
"""The longest silence afterwards."""
_LOOK_S = 0.5


class Lines:
    """Prints lines and, when none has come for a while, what goes on.

    lines = Lines(print); lines.phase("evaluating", total=64); lines.advance()
    """

    def __init__(self, show: Callable[[str], None], at: Callable[[], str] | None = None) -> None:
        """`at` returns what goes on, in a line; by default what `phase` and `advance` have said."""
        self.patience_s = FIRST_S
        self._show, self._at = show, at or self._phase_line
        self._said = self._began = time.monotonic()
        self._name, self._done, self._total = "starting", 0, 0

    def say(self, line: str) -> None:
        """Print a line now."""
        self._said = time.monotonic()
        self._show(line)

    def phase(self, name: str, total: int = 0) -> None:
        """Say what begins, and how much of it there is, if that is known."""
        self._began, self._name, self._done, self._total = time.monotonic(), name, 0, total

    def advance(self) -> None:
        """Say that one more of the total is done."""
        self._done += 1

    @contextmanager
    def refreshing(self) -> Iterator[None]:
        """Meanwhile a thread prints what goes on before `patience_s` seconds are silent."""
        with repeated(self._keep_up, _LOOK_S):
            yield

    def _keep_up(self) -> None:
        if time.monotonic() - self._said > self.patience_s - 2 * _LOOK_S:
            self.say(self._at())

    def _phase_line(self) -> str:
        seconds = time.monotonic() - self._began
        return phase_line(self._name, self._done, self._total or None, seconds)


class RunConsole(Console):
    """The terminal; when nobody reads it any more, the run goes on in silence."""

    def __init__(self) -> None:
        # A file has no width; Rich would take 80 columns for one.
        super().__init__(width=None if sys.stdout.isatty() else 160)

    def on_broken_pipe(self) -> None:
        """Rich would end the process here."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
