"""Tracker: receives everything that happens in a run, and has it recorded and displayed."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from unstable.config import RunConfig
from unstable.records.files import hide_in_lines
from unstable.records.folder import RunFolder
from unstable.records.policies import write_policies
from unstable.records.reading import Skipped, parse_record, read_rows
from unstable.records.shapes import RatingRecord, Ratings, SampleRecord
from unstable.records.summary import RunSummary
from unstable.tracking.advice import Stale
from unstable.tracking.dashboard import start_dashboard
from unstable.tracking.display import Display
from unstable.tracking.games import GameLog
from unstable.tracking.metrics import (
    Usage,
    evaluation_metrics,
    exploitability_metrics,
    rating_metrics,
    worst_metrics,
)
from unstable.tracking.recording import Recording, TrackerState
from unstable.tracking.sinks import SinkMaker
from unstable.tracking.sinks.base import name_of, wants_records
from unstable.tracking.sinks.files import SampleFiles
from unstable.tracking.status import Ending
from unstable.tracking.summary import summary
from unstable.tracking.text import (
    action_line,
    alarm_line,
    exploitability_line,
    held_out_line,
    memory_line,
    refusal_line,
    score_line,
    update_line,
)
from unstable.types import (
    Alarm,
    EvalScore,
    Exploitability,
    GameResult,
    PlayedGame,
    Rating,
    Shares,
    Unwritable,
    Update,
)
from unstable.types.play import PlayTally
from unstable.types.tallies import Least


class Tracker:
    """Record of a run in `folder`'s files, on `console` and, if configured, in W&B.

    It is a plain object of the driver's process. Raises `ConfigError` if `folder` or a sink cannot
    be written at the start; later a sink's failure is reported once and stops nothing.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        *,
        console: Console | None = None,
        device: str = "",
        usage: Usage = dict,
        sinks: Sequence[SinkMaker] = (),
    ) -> None:
        """Open the sinks and the display; `sinks` are makers of custom sinks.

        `device` describes the machine for the dashboard's head; `usage` returns its utilization.
        """
        self.folder = folder
        self._stale = Stale(config)
        self.display = Display(config, folder, console, device, usage)
        self.view, self.waits = self.display.view, self.display.waits
        self.refreshing, self.print = self.display.refreshing, self.display.print
        skipped = Skipped()
        rows = read_rows(folder.metrics, skipped)  # of a resumed run
        self.view.summary = RunSummary.of(rows)
        self.recording = Recording(config, folder, self.display.border, sinks, rows, usage)
        self._games = GameLog(config, self.recording, self.display)
        self.add_again, self.add_failure = self._games.add_again, self._games.add_failure
        if skipped:
            self.print(skipped.line)
        for sink in self.recording.sinks:
            if sink.url is not None:
                self.print(f"{name_of(sink)}: {sink.url}")
        self.display.live = start_dashboard(self.view, self.display.console)

    def phase(self, name: str, done: float = 0, total: float | None = None) -> None:
        """Set the run's phase and its progress: `done` of `total`.

        From there "playing" advances by itself with every sample, "evaluating" with every game.
        """
        self.recording.spend(self.view.phase.name)
        self.display.phase(name, done, total)

    def add_games(
        self, games: Sequence[PlayedGame], tally: PlayTally, version: int, actor: int = 0
    ) -> None:
        """Record training games that finished while `version` was current, and their tally."""
        self.display.advance("playing", sum(each.num_samples for each in games))
        self._games.add(games, tally, version, actor)

    def add_eval_episode(self, result: GameResult, version: int) -> None:
        """Record a finished game of the evaluation of `version`."""
        self.display.advance("evaluating", 1)
        self._games.add_evaluated(result, version)

    def log(self, metrics: Mapping[str, float | None]) -> None:
        """Record metrics without further display."""
        self.recording.add(metrics)

    def log_learner(self, update: Update) -> None:
        """Record the learner's metrics, unrenamed; warn of skipped steps and of a full GPU."""
        self.log(update.metrics)
        if halvings := int(update.metrics.get("learn/out_of_memory") or 0):
            self.display.warn(memory_line(update.version, halvings))
        if update.refusals:
            self.display.warn(refusal_line(update))

    def log_samples(self, update: Update) -> None:
        """Record the samples that `update` trained on, if the config requests their lines."""
        lines = update.lines
        if isinstance(lines, Unwritable):
            self.display.border(SampleFiles.name, lines.complain)
        elif lines is not None:
            (lines,) = hide_in_lines([lines])
            self.recording.emit("sample_lines", update.version, lines)
            if wants_records(self.recording.sinks, "samples"):
                records = [
                    parse_record(each, SampleRecord, "a line") for each in lines.splitlines()
                ]
                self.recording.emit("samples", update.version, records)

    def log_evaluation(self, scores: Sequence[EvalScore], *, beside: bool = False) -> None:
        """Record the scores of a version against each opponent.

        With `beside`, the evaluation ran concurrently with updates, and `end_evaluation` follows.
        """
        self.recording.add(evaluation_metrics(scores), beside)
        if scores:
            self.recording.emit("evaluation", scores[0].version, scores)
        for score in scores:
            self.display.say(score_line(score))

    def log_exploitability(self, found: Exploitability, *, beside: bool = False) -> None:
        """Record the exploitability of a version; `beside` as in `log_evaluation`."""
        self.recording.add(exploitability_metrics(found), beside)
        self.display.say(exploitability_line(found))

    def log_offline(self, metrics: Mapping[str, float | None]) -> None:
        """Record the progress of a run on recorded games, and its held-out loss if known."""
        self.log(metrics)
        if "offline/held_out_loss" in metrics:
            self.display.say(held_out_line(metrics))

    def keep_policies(self, version: int, policies: Mapping[str, Shares]) -> None:
        """Save a measured version's policies in small games, for comparison with later versions."""
        if policies and not self.view.config.eval.exploitability.samples:
            self.display.border("policies", write_policies, self.folder, version, policies)

    def name_best(self, version: int | None) -> None:
        """Link `checkpoints/best` to a version; None does nothing."""
        self.display.border("checkpoints/best", self.folder.name_best, version)

    def log_alarms(self, alarms: Sequence[Alarm]) -> None:
        """Record the guard's alarms, if any."""
        before = self.recording.row.get("guard/alarms") or 0
        self.log({"guard/alarms": before + len(alarms)})
        for alarm in alarms:
            self.log({f"guard/alarm/{alarm.rule}": alarm.figure})
            self.view.alarm = alarm_line(alarm)
            self.view.alarms += 1
            self.display.warn(self.view.alarm)

    def log_actions(
        self, actions: Sequence[str], best: int | None, shares: Mapping[str, float]
    ) -> None:
        """Record the actions that alarms led to; `best` is the version that a rollback returns to.

        `shares` are the shares of the kinds of opponents from now on.
        """
        self.log({f"guard/draw/{kind}": share for kind, share in shares.items()})
        self.log({f"guard/action/{action}": 1.0 for action in actions})
        if "rollback" in actions:
            self.log({"guard/rolled_back_to": best})
        if actions:
            self.display.warn(action_line(actions, best, shares))

    def log_ratings(self, ratings: Sequence[Rating]) -> None:
        """Record the current ratings of all players."""
        self.log(rating_metrics(ratings))
        self.view.summary = replace(self.view.summary, ratings=tuple(ratings))
        rows = [
            RatingRecord(**{**asdict(rating), "player": rating.player.name}) for rating in ratings
        ]
        self.recording.emit("ratings", Ratings(players=rows))

    def log_worst(self, found: Mapping[str, Least], *, beside: bool = False) -> None:
        """Record the least score against the past, by policy; `beside` as in `log_evaluation`."""
        self.recording.add(worst_metrics(found), beside)

    def log_actor(self, actor: int, stats: Mapping[str, float]) -> None:
        """Record an engine's counters, which count from the actor's start."""
        engine, seconds = self.recording.engine, self.recording.seconds
        engine.add(actor, stats)
        self.view.engine = engine.values(seconds)
        self.view.actors = {**self.view.actors, actor: engine.values(seconds, actor)}

    def log_buffer(self, stats: Mapping[str, float]) -> None:
        """Record the buffer's content and dropped samples."""
        self.view.buffer = {f"buffer/{name}": value for name, value in stats.items()}
        self.log(self.view.buffer)

    def end_update(self, version: int) -> None:
        """End a row of `metrics.jsonl` with all metrics since the last call.

        A run out of time has two rows of its last version; the second has later metrics.
        """
        self.recording.spend(self.view.phase.name)
        is_new = version > self.view.version
        row = self.recording.end_row(version)
        self.view.row_started = self.recording.began
        self.view.add_row(row)
        if is_new:
            self.display.be_patient()
            if (line := self._stale.add(row)) is not None:
                self.display.warn(line)
            left_s = self.view.seconds_left(self.view.clock()) or 0.0
            self.display.say(update_line(row, self.view.config.loop.steps, left_s))

    def end_evaluation(self, version: int) -> None:
        """End a row of metrics added `beside`, which readers join to the version's row."""
        self.view.add_row(self.recording.end_beside(version))

    def state(self) -> TrackerState:
        """Return the state that `restore` takes."""
        self.recording.spend(self.view.phase.name)
        return self.recording.state()

    def restore(self, state: TrackerState) -> None:
        """Continue from what `state` returned."""
        self.recording.restore(state)
        self.view.row_started = self.recording.began

    def finish(self, reason: str, ending: Ending = "ended") -> None:
        """Stop the dashboard and print the results of the run, which ended by `reason`.

        The files record why it failed; the caller reports that to the person at the terminal.
        """
        reported = self.view.config.tracking.report
        short = reason if ending == "ended" else ending
        self.display.finish(reason, ending, partial(summary, self.folder, short, reported=reported))

    def end(self, reason: str, report: Path | None) -> None:
        """Record that the run ended, and where its report is, if one was made."""
        self.recording.emit("end", reason, report)

    def close(self) -> None:
        """Release the terminal and close every sink; a second call does nothing."""
        self.display.stop()
        self.recording.close()
