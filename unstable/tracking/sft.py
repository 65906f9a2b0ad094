"""Supervised training as a person sees it: a row a step and an epoch, a bar, the results."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from rich.console import Console
from rich.progress import Progress

from unstable.config import RunConfig
from unstable.records.files import LineFile, write_lines
from unstable.records.folder import RunFolder
from unstable.records.reading import measured, read_rows
from unstable.records.text import number
from unstable.tracking.lines import LATER_S, Lines, RunConsole, progress_bar
from unstable.tracking.metrics import Row
from unstable.tracking.sinks import MetricsFile, SinkMaker, open_watchers
from unstable.tracking.sinks.base import Sink, SinkBorder
from unstable.tracking.status import Ending, StatusFile, Waits, state_of
from unstable.tracking.text import Text, needed_text, payoff_text, refusal_line, score_text
from unstable.tracking.view import HISTORY, Phase, View
from unstable.types import EvalScore, Update
from unstable.types.metrics import EvalKey


class SFTTracker:
    """Writes `metrics.jsonl` and shows how far it is: a bar on a terminal, plain lines elsewhere.

    `epochs` and `steps` are how many there will be at most. A sink that fails is reported once and
    stops nothing.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        *,
        epochs: int,
        steps: int,
        console: Console | None = None,
        sinks: Sequence[SinkMaker] = (),
    ) -> None:
        self._epochs = epochs
        self._steps = steps
        self._console = console or RunConsole()
        self._lines = Lines(self._show)
        self._border = SinkBorder(self.print)
        self._sinks: list[Sink] = [MetricsFile(folder), *open_watchers(config, folder, sinks)]
        shown = config.tracking.dashboard
        now = time.monotonic()
        self.view = View(
            config=config,
            name=config.tracking.name or folder.root.name,
            device="",
            started=now,
            row_started=now,
            phase=Phase("starting", 0, None, now),
        )
        self._waits = Waits()
        self._state = StatusFile(folder, self._at, self._border)
        if rows := read_rows(folder.metrics):
            self.view.resume(rows)
        self._bar: Progress | None = None
        if shown == "on" or (shown == "auto" and self._console.is_terminal):
            self._bar = progress_bar(self._console)
            self._task = self._bar.add_task("starting", total=steps)
            self._bar.start()

    @contextmanager
    def refreshing(self) -> Iterator[None]:
        """Meanwhile no silence is long: there is a bar, or lines are printed.

        `state.json` is replaced every second.
        """
        lines = self._lines.refreshing() if self._bar is None else nullcontext()
        with self._state.refreshing(), lines:
            yield

    def finish(self, reason: str, ending: Ending = "ended") -> None:
        """Take in that the run is over, and why."""
        self._state.write(ending, reason)

    def _at(self) -> dict[str, Any]:
        return {**state_of(self.view, self._waits), "view": self.view.record()}

    def print(self, line: str) -> None:
        """Show a line to the person at the terminal."""
        self.view.notice = line
        self._lines.say(line)

    def _show(self, line: str) -> None:
        self._border("the terminal", lambda: self._console.print(Text(line), soft_wrap=True))

    def phase(self, name: str) -> None:
        """Say what goes on besides steps."""
        self._lines.phase(name)
        self._at_phase(name, 0, None)
        if self._bar is not None:
            self._bar.update(self._task, description=name)

    def log_step(self, row: Row) -> None:
        """Take in an optimizer step."""
        self._write(row)
        line = f"epoch {row['sft/epoch']} · loss {number(row['learn/loss'])}"
        if self._bar is not None:
            self._bar.update(self._task, description=line, completed=row["version"])
        self._at_phase("training", row["version"] or 0, self._steps)
        self._lines.patience_s = LATER_S
        self._lines.phase(f"{line} · step {row['version']}/{self._steps}")

    def log_refusals(self, update: Update) -> None:
        """Take in that a step was not made."""
        self.print(refusal_line(update))

    def log_epoch(self, row: Row) -> None:
        """Take in an epoch that was evaluated; the first one is the start."""
        self._write(row)
        epoch, loss = row["sft/epoch"], number(row["sft/held_out_loss"])
        head = f"epoch {epoch}/{self._epochs}" if epoch else "before training"
        self.print(f"{head} · held-out loss {loss}")
        for each in measured(EvalKey, [row], "score"):
            env, opponent, mode = each.key.env, each.key.opponent, each.key.mode
            score = EvalScore(version=each.version, env=env, opponent=opponent, **each.figures)
            self.view.scores = (score, *self.view.scores)
            result = f"{score_text(score)}{payoff_text(score)}{needed_text(score)}"
            self.print(f"  {mode}, {env} against {opponent}: {result}")

    def close(self) -> None:
        """Give the terminal back and close every sink."""
        if self._bar is not None:
            self._bar.stop()
        self._border.emit(self._sinks, "close")

    def _at_phase(self, name: str, done: float, total: float | None) -> None:
        same = name == self.view.phase.name
        started = self.view.phase.started if same else time.monotonic()
        self.view.phase = Phase(name, done, total, started)
        self._waits.move()

    def _write(self, row: Row) -> None:
        self.view.rows = (*self.view.rows, row)[-HISTORY:]
        self.view.version = int(row["version"] or 0)
        self._border.emit(self._sinks, "row", row)


def rewind(folder: RunFolder, version: int) -> list[Row]:
    """Drop the rows of `metrics.jsonl` that came after `version`; returns the others."""
    LineFile(folder.metrics).close()  # which cuts off half a line
    rows = [row for row in read_rows(folder.metrics) if row["version"] <= version]
    write_lines(folder.metrics, rows)
    return rows
