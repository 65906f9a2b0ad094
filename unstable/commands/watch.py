"""A run's dashboard in any terminal, from its folder alone: `unstable watch RUN`."""

import contextlib
import logging
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console
from rich.live import Live

from unstable.commands.diagnosis import condition_of, status_of
from unstable.commands.session import Terminated
from unstable.config import ConfigError, RunConfig, load
from unstable.records.folder import RunFolder, existing_run
from unstable.records.reading import Skipped
from unstable.records.summary import RunSummary
from unstable.tracking.dashboard import Dashboard
from unstable.tracking.view import RunView

EVERY_S = 0.5
FRAMES_A_SECOND = 4
ONCE_SIZE = 100, 40
"""Columns and lines of the output without a terminal."""
LEAVE = b"q\x03\x04"


class Watched:
    """Current view of a run from its files. Raises `ConfigError` if they show no dashboard."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._config: RunConfig = load(str(folder.config), {})
        self._summary = RunSummary()
        self._skipped = Skipped()
        self._read_of: tuple[int, int] | None = None  # mtime and size of metrics.jsonl
        self.view = self._read()

    def refresh(self) -> None:
        """Read the view again; it stays unchanged if files cannot be read."""
        with contextlib.suppress(ConfigError, OSError):
            self.view = self._read()

    def _read(self) -> RunView:
        folder, now = self._folder, time.time()
        status = status_of(folder)
        condition = condition_of(folder, status, now)
        written = status.get("written")
        written = written if isinstance(written, float | int) else now
        is_running = condition.word == "running"
        seconds: Callable[[], float] = (
            (lambda: time.time() - written) if is_running else (lambda: 0)
        )
        try:
            view = RunView.read(status["view"], self._config, self._newest(), seconds)
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(
                f"RUN_DIR = {str(folder.root)!r}: its state.json has no dashboard; give a "
                "run of unstable train"
            ) from error
        view.notice = self._skipped.line or view.notice
        if not is_running:
            view.phase = view.phase._replace(name=condition.word)
            view.engine, view.actors, view.machine = {}, {}, {}  # outdated values
            parts = [condition.line, condition.next]
            if condition.word == "failed":  # a long reason may be cut off, so it is last
                parts = [condition.word, condition.next, condition.why]
            view.notice = " · ".join(filter(None, [*parts, self._skipped.line]))
            view.alarm = "" if condition.wrong else view.alarm
        return view

    def _newest(self) -> RunSummary:
        """Return the run's summary, read again if the file of rows has changed."""
        with contextlib.suppress(FileNotFoundError):
            file = self._folder.metrics.stat()
            is_of = (file.st_mtime_ns, file.st_size)
            if is_of != self._read_of:
                self._skipped = Skipped()
                self._summary = RunSummary.read(self._folder, self._skipped)
                self._read_of = is_of
        return self._summary


def watch(run_dir: Path, *, once: bool = False) -> None:
    """Show a run's dashboard until q or Ctrl-C; with `once`, print its current state.

    Without a terminal, also prints it once. Raises `ConfigError` for a folder that is not a run's.
    """
    logging.getLogger("unstable").addHandler(logging.NullHandler())  # keeps the display clean
    watched = Watched(existing_run(run_dir))
    console = Console()
    if once or not (console.is_terminal and sys.stdin.isatty()):
        width, height = console.size if console.is_terminal else ONCE_SIZE
        Console(width=width, height=height).print(Dashboard(watched.view), height=height)
        return
    live = Live(
        get_renderable=lambda: Dashboard(watched.view),
        console=console,
        screen=True,
        refresh_per_second=FRAMES_A_SECOND,
    )
    try:
        with _keys() as key, live:
            while key(EVERY_S) not in LEAVE:
                watched.refresh()
    except Terminated:
        raise
    except KeyboardInterrupt:
        pass  # same as q


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], bytes]]:
    """Yield a function that waits some seconds for a key and returns it, or b"\\0" for none."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)

    def key(seconds: float) -> bytes:
        ready, _, _ = select.select([descriptor], [], [], seconds)
        return (os.read(descriptor, 1) or b"q") if ready else b"\0"

    tty.setcbreak(descriptor)
    try:
        yield key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)
