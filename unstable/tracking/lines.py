"""Progress of a run in a terminal without a dashboard: lines, so that no silence is long."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from unstable.records.tables import Table
from unstable.tracking import text

FIRST_S = 5.0
"""Longest silence in seconds until the first update, or in work without updates."""
LATER_S = 30.0
"""Longest silence in seconds after the first update."""
_LOOK_S = 0.5
PATIENCE_S = 10.0
"""Seconds to wait at the end for a thread's unfinished work; work that hangs is abandoned."""


@contextmanager
def repeated(work: Callable[[], None], every_s: float) -> Iterator[None]:
    """Call `work` every `every_s` seconds during the block, even while the block waits."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(every_s):
            work()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(PATIENCE_S)


class Lines:
    """Printer of lines that prints the current progress when no line has come for a while.

    lines = Lines(print); lines.phase("evaluating", total=64); lines.advance()
    """

    def __init__(self, show: Callable[[str], None], at: Callable[[], str] | None = None) -> None:
        """Print by `show`; `at` returns progress, by default from `phase` and `advance`."""
        self.patience_s = FIRST_S
        self._show, self._at = show, at or self._phase_line
        self._shown_at = self._began = time.monotonic()
        self._name, self._done, self._total = "starting", 0, 0

    def say(self, line: str) -> None:
        """Print a line now."""
        self._shown_at = time.monotonic()
        self._show(line)

    def phase(self, name: str, total: int = 0) -> None:
        """Begin a phase with `total` steps, 0 if the number is unknown."""
        self._began, self._name, self._done, self._total = time.monotonic(), name, 0, total

    def advance(self) -> None:
        """Count a step of the phase as done."""
        self._done += 1

    @contextmanager
    def refreshing(self) -> Iterator[None]:
        """Print the progress from a thread before `patience_s` seconds are silent."""
        with repeated(self._keep_up, _LOOK_S):
            yield

    def _keep_up(self) -> None:
        if time.monotonic() - self._shown_at > self.patience_s - 2 * _LOOK_S:
            self.say(self._at())

    def _phase_line(self) -> str:
        seconds = time.monotonic() - self._began
        return text.phase_line(self._name, self._done, self._total or None, seconds)


class RunConsole(Console):
    """Terminal of a run; if nobody reads it any more, the run continues silently."""

    def __init__(self) -> None:
        # For a file, Rich would assume 80 columns.
        super().__init__(width=None if sys.stdout.isatty() else 160)

    def on_broken_pipe(self) -> None:
        """Silence the console, where Rich would end the process."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_table(table: Table) -> None:
    """Print a table of results; long words are folded, not cut off."""
    RunConsole().print(text.table(table, overflow="fold"))


def print_lines(lines: Iterable[str]) -> None:
    """Print lines of a result, wrapped at the terminal's width."""
    console = RunConsole()
    for line in lines:
        console.print(text.Text(line))


def progress_bar(console: Console) -> Progress:
    """Return a bar with steps and the remaining time."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    return Progress(*columns, TimeRemainingColumn(), console=console)


@contextmanager
def progress(what: str, steps: int) -> Iterator[Callable]:
    """Show a training's progress on a terminal, else its end; yields a function of the loss."""
    with progress_bar(Console(stderr=True)) as bar:
        task = bar.add_task(what, total=steps)
        yield lambda loss: bar.update(task, advance=1, description=f"{what} · loss {loss:.3f}")
