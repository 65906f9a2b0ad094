"""What a run is at, in lines, where there is no dashboard: nobody waits in silence."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from unstable.tracking.text import phase_line

FIRST_S = 5.0
"""The longest silence until the first update, or where there is none."""
LATER_S = 30.0
"""The longest silence afterwards."""
_LOOK_S = 0.5
LINE_EVERY_S = 20.0
"""Between two lines of a training, where there is no bar."""
PATIENCE_S = 10.0
"""For work of a thread that is under way at the end; what hangs then does not hold the end up."""


@contextmanager
def repeated(work: Callable[[], None], every_s: float) -> Iterator[None]:
    """Call `work` every so many seconds for the duration of the block, even while that waits."""
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
    """Prints lines and, when none has come for a while, what goes on.

    lines = Lines(print); lines.phase("evaluating", total=64); lines.advance()
    """

    def __init__(self, show: Callable[[str], None], at: Callable[[], str] | None = None) -> None:
        """`at` returns what goes on, in a line; by default what `phase` and `advance` have said."""
        self.patience_s = FIRST_S
        self._show, self._at = show, at or self._phase_line
        self._shown_at = self._began = time.monotonic()
        self._name, self._done, self._total = "starting", 0, 0

    def say(self, line: str) -> None:
        """Print a line now."""
        self._shown_at = time.monotonic()
        self._show(line)

    def phase(self, name: str, total: int = 0) -> None:
        """Say what begins, and how much of it there is, if that is known."""
        self._began, self._name, self._done, self._total = time.monotonic(), name, 0, total

    def advance(self) -> None:
        """Say that one more of the total is done."""
        self._done += 1

    @contextmanager
    def refreshing(self) -> Iterator[None]:
        """Have a thread print what goes on before `patience_s` seconds are silent."""
        with repeated(self._keep_up, _LOOK_S):
            yield

    def _keep_up(self) -> None:
        if time.monotonic() - self._shown_at > self.patience_s - 2 * _LOOK_S:
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


def progress_bar(console: Console) -> Progress:
    """A bar with steps and the time that is left."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    return Progress(*columns, TimeRemainingColumn(), console=console)


@contextmanager
def progress(what: str, steps: int, console: Console | None = None) -> Iterator[Callable]:
    """Show the progress of a piece of training: a bar on a terminal, plain lines elsewhere.

    Yields a function that is called once a step, with that step's loss.
    """
    console = console or Console(stderr=True)
    bar = progress_bar(console)
    task = bar.add_task(what, total=steps)
    printed, done = time.monotonic(), 0

    def step(loss: float) -> None:
        nonlocal printed, done
        done += 1
        bar.update(task, advance=1, description=f"{what} · loss {loss:.3f}")
        if not console.is_terminal and time.monotonic() - printed > LINE_EVERY_S:
            printed = time.monotonic()
            console.print(f"{what}: {done}/{steps} steps, loss {loss:.3f}")

    if not console.is_terminal:
        yield step
        return
    with bar:
        yield step
