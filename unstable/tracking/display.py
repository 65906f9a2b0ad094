"""Display of a run: a dashboard or lines in the terminal, and `state.json`."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live
from rich.progress import Progress

from unstable.config import RunConfig
from unstable.records.folder import RunFolder
from unstable.tracking.lines import LATER_S, Lines, RunConsole
from unstable.tracking.metrics import Usage
from unstable.tracking.sinks.base import SinkBorder
from unstable.tracking.status import Ending, StatusFile, state_of
from unstable.tracking.text import Text, phase_line, still_line
from unstable.tracking.view import Phase, RunView
from unstable.types.processes import Waits

logger = logging.getLogger(__name__)
STILL_S = 20.0
"""Seconds without a game, an answer or a new phase after which a line names the open waits."""


class Display:
    """Display of a run's `view`. What cannot be shown is reported once and stops nothing.

    `device` describes the machine, for the dashboard's head.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        console: Console | None = None,
        device: str = "",
        usage: Usage = dict,
    ) -> None:
        """Create the view; `usage` is called before each write of `state.json`."""
        now = time.monotonic()
        self.view = RunView(
            config=config,
            name=config.tracking.name or folder.root.name,
            device=device,
            started=now,
            row_started=now,
            phase=Phase("starting", 0, None, now),
        )
        self.console = console or RunConsole()
        self.live: Live | Progress | None = None
        self.waits = Waits()
        self.border = SinkBorder(self.print)
        self._usage = usage
        self._lines = Lines(self._show, self._phase_line)
        self._status = StatusFile(folder, self._state, self.border)

    @contextmanager
    def refreshing(self) -> Iterator[None]:
        """Refresh the dashboard or print lines during the block, so that no silence is long.

        A line comes at the latest after `FIRST_S` seconds until the first update, and after
        `LATER_S` from then on. `state.json` is replaced every second.
        """
        lines = self._lines.refreshing() if self.live is None else nullcontext()
        with self._status.refreshing(), lines:
            yield

    def phase(self, name: str, done: float = 0, total: float | None = None) -> None:
        """Set the run's phase and its progress: `done` of `total`."""
        same = name == self.view.phase.name
        started = self.view.phase.started if same else time.monotonic()
        self.view.phase = Phase(name, done, total, started)
        self.waits.move()

    def advance(self, name: str, by: int) -> None:
        """Advance a phase by `by`, if the run is in it."""
        self.waits.move()
        phase = self.view.phase
        if phase.name == name and phase.total is not None:
            self.view.phase = phase._replace(done=min(phase.done + by, phase.total))

    def be_patient(self) -> None:
        """Print lines less often, as after the first update."""
        self._lines.patience_s = LATER_S

    @property
    def has_dashboard(self) -> bool:
        """True if a dashboard covers the terminal, so that no line is printed."""
        return isinstance(self.live, Live)

    def say(self, line: str) -> None:
        """Print a line unless a dashboard shows its content."""
        if not self.has_dashboard:
            self.print(line)

    def print(self, line: str) -> None:
        """Show a line to the person at the terminal."""
        self.view.notice = line
        if not self.has_dashboard:
            self._lines.say(line)

    def warn(self, line: str) -> None:
        """Log a line and show it."""
        logger.warning(line)
        self.print(line)

    def finish(
        self, reason: str, ending: Ending, text: Callable[[], RenderableType] | None = None
    ) -> None:
        """Record that the run ended, and why; print `text`, its results."""
        self._status.write(ending, reason)
        if text is not None:
            self.stop()
            self.border("the summary", lambda: self.console.print(text()))

    def stop(self) -> None:
        """Release the terminal; a second call does nothing."""
        if self.live is not None:
            self.border("the dashboard", self.live.stop)
            self.live = None

    def _show(self, line: str) -> None:
        self.border("the terminal", lambda: self.console.print(Text(line), soft_wrap=True))

    def _phase_line(self) -> str:
        phase, still_s = self.view.phase, time.time() - self.waits.moved
        line = phase_line(*phase[:3], time.monotonic() - phase.started)
        waits = [wait.what for wait in self.waits.open()]
        return line if still_s < STILL_S else f"{line}{still_line(waits, still_s)}"

    def _state(self) -> dict[str, Any]:
        """Return the content of `state.json`; `view` is None if making it failed."""
        found: list[dict[str, Any]] = []

        def take() -> None:
            self.view.machine = self._usage()
            found.append(self.view.record())

        self.border("the dashboard in state.json", take)
        return {**state_of(self.view, self.waits), "view": found[0] if found else None}
