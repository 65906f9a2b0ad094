"""Display of supervised training: one row per step and epoch, a progress bar, the results."""

from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress

from unstable.config import RunConfig
from unstable.records.files import LineFile, write_lines
from unstable.records.folder import RunFolder
from unstable.records.reading import measured, read_rows
from unstable.records.summary import RunSummary
from unstable.records.text import number
from unstable.tracking.display import Display
from unstable.tracking.lines import progress_bar
from unstable.tracking.metrics import Row
from unstable.tracking.sinks import MetricsFile, SinkMaker, open_watchers
from unstable.tracking.status import Ending
from unstable.tracking.text import needed_text, payoff_text, refusal_line, score_text
from unstable.types import EvalScore, Update
from unstable.types.metrics import EvalKey


class SFTTracker:
    """Writer of `metrics.jsonl` and display of progress: a bar on a terminal, else plain lines.

    `epochs` and `steps` are the most there will be. A sink that fails is reported once and stops
    nothing.
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
        self._epochs, self._steps = epochs, steps
        self._display = display = Display(config, folder, console)
        self.view, self.refreshing = display.view, display.refreshing
        self.print = display.print
        self._sinks = open_watchers(config, folder, sinks, [MetricsFile(folder)])
        self.view.summary = RunSummary.of(read_rows(folder.metrics))
        shown = config.tracking.dashboard
        if shown == "on" or (shown == "auto" and display.console.is_terminal):
            display.live = bar = progress_bar(display.console)
            self._task = bar.add_task("starting", total=steps)
            bar.start()

    def finish(self, reason: str, ending: Ending = "ended") -> None:
        """Record that the run ended, and why."""
        self._display.finish(reason, ending)

    def phase(self, name: str) -> None:
        """Show a phase other than steps."""
        self._show(name, 0, None)

    def log_step(self, row: Row) -> None:
        """Record an optimizer step."""
        self._write(row)
        self._display.be_patient()
        line = f"epoch {row['sft/epoch']} · loss {number(row['learn/loss'])} · step"
        self._show(line, row["version"] or 0, self._steps)

    def log_refusals(self, update: Update) -> None:
        """Report that a step was refused."""
        self.print(refusal_line(update))

    def log_epoch(self, row: Row) -> None:
        """Record an epoch that was evaluated; the first one is the start."""
        self._write(row)
        epoch, loss = row["sft/epoch"], number(row["sft/held_out_loss"])
        head = f"epoch {epoch}/{self._epochs}" if epoch else "before training"
        self.print(f"{head} · held-out loss {loss}")
        for each in measured(EvalKey, [row], "score"):
            env, opponent, mode = each.key.env, each.key.opponent, each.key.mode
            score = EvalScore(version=each.version, env=env, opponent=opponent, **each.figures)
            result = f"{score_text(score)}{payoff_text(score)}{needed_text(score)}"
            self.print(f"  {mode}, {env} against {opponent}: {result}")

    def close(self) -> None:
        """Release the terminal and close every sink."""
        self._display.stop()
        self._display.border.emit(self._sinks, "close")

    def _show(self, name: str, done: float, total: float | None) -> None:
        self._display.phase(name, done, total)
        if isinstance(self._display.live, Progress):
            completed = done if total else None
            self._display.live.update(self._task, description=name, completed=completed)

    def _write(self, row: Row) -> None:
        self.view.add_row(row)
        self._display.border.emit(self._sinks, "row", row)


def rewind(folder: RunFolder, version: int) -> list[Row]:
    """Drop the rows of `metrics.jsonl` after `version`; returns the others."""
    LineFile(folder.metrics).close()  # drops a partial last line
    rows = [row for row in read_rows(folder.metrics) if row["version"] <= version]
    write_lines(folder.metrics, rows)
    return rows
