"""The tracker: takes in everything that happens in a run, writes it down and shows it."""

import logging
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.live import Live

from unstable.config import ConfigError, RunConfig
from unstable.records.files import hide_in_line
from unstable.records.folder import RunFolder
from unstable.records.policies import write_policies
from unstable.records.reading import Skipped, joined, parse_record, read_rows
from unstable.records.shapes import RatingRecord, Ratings, SampleRecord
from unstable.tracking.advice import Stale
from unstable.tracking.dashboard import start_dashboard
from unstable.tracking.device import DeviceProbe
from unstable.tracking.games import GameLog
from unstable.tracking.lines import LATER_S, Lines, RunConsole
from unstable.tracking.metrics import (
    EngineMetrics,
    Row,
    evaluation_metrics,
    exploitability_metrics,
    rating_metrics,
    worst_metrics,
)
from unstable.tracking.play import PlayMetrics, PlayState, PlayTally
from unstable.tracking.sinks import SinkMaker, open_sinks
from unstable.tracking.sinks.base import Sink, SinkBorder, name_of, wants_records
from unstable.tracking.sinks.files import SampleFiles
from unstable.tracking.status import Ending, StatusFile, Waits, state_of
from unstable.tracking.summary import summary
from unstable.tracking.text import (
    Text,
    action_line,
    alarm_line,
    exploitability_line,
    held_out_line,
    memory_line,
    phase_line,
    refusal_line,
    score_line,
    still_line,
    update_line,
)
from unstable.tracking.view import HISTORY, Phase, View
from unstable.types import (
    Alarm,
    EvalScore,
    Exploitability,
    GameFailure,
    GameResult,
    PlayedGame,
    Rating,
    Shares,
    Unwritable,
    Update,
)
from unstable.types.tallies import Least

logger = logging.getLogger(__name__)

PHASES = {
    "playing": "play",
    "updating": "update",
    "evaluating": "evaluate",
    "publishing": "publish",
}
"""The verb by which a phase's time is logged; of another phase it is the name's first word."""
RECENT_SCORES = 50
STILL_S = 20.0
"""Without a game, an answer or a new phase for so long, a line says what is waited for."""


class TrackerState(BaseModel):
    """What the next row has so far; of engines and the device nothing."""

    row: dict[str, float | bool | None]
    times: dict[str, float]
    seconds: float
    play: PlayState


class Tracker:
    """What a run does, in `folder`'s files, on `console` and, if asked for, in W&B.

    It is a plain object of the driver's process. Raises `ConfigError` if `folder` or a sink cannot
    be written at the start; after that a sink's failure is reported once and stops nothing.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        *,
        console: Console | None = None,
        device: str = "",
        sinks: Sequence[SinkMaker] = (),
    ) -> None:
        """`device` is the machine in words, for the dashboard's head; `sinks` are a user's own."""
        self.folder = folder
        self._console = console or RunConsole()
        self._dashboard: Live | None = None
        now = time.monotonic()
        self.view = View(
            config=config,
            name=config.tracking.name or folder.root.name,
            device=device,
            started=now,
            row_started=now,
            phase=Phase("starting", 0, None, now),
        )
        self._row: Row = {}
        self._beside: Row = {}  # what an evaluation has so far that other rows do not wait for
        self._names: dict[str, None] = {}
        self._spent_until = now
        self._times = dict.fromkeys(PHASES.values(), 0.0)
        self._play = PlayMetrics(config)
        self._stale = Stale(config)
        self._engine = EngineMetrics()
        self._device = DeviceProbe()
        self._lines = Lines(self._show, self._phase_line)
        self._border = SinkBorder(self.print)
        self.waits = Waits()
        """Those who wait for something in the run say so here."""
        self._state = StatusFile(folder, self._at, self._border)
        try:
            folder.checkpoints.mkdir(parents=True, exist_ok=True)
            self._sinks: list[Sink] = open_sinks(config, folder, sinks)
        except OSError as error:
            raise ConfigError(
                f"tracking.run_dir = '{folder.root}': cannot be written ({error.strerror}); "
                "choose another folder"
            ) from None
        self._games = GameLog(
            config, self._play, self.view, self._sinks, self._border, self.print, self.warn
        )
        skipped = Skipped()
        if rows := read_rows(folder.metrics, skipped):  # the run is resumed
            self._names.update(dict.fromkeys(rows[-1]))
            self.view.resume(rows)
        if skipped:
            self.print(skipped.line)
        for sink in self._sinks:
            if sink.url is not None:
                self.print(f"{name_of(sink)}: {sink.url}")
        self._dashboard = start_dashboard(self.view, self._console)

    @contextmanager
    def refreshing(self) -> Iterator[None]:
        """Meanwhile no silence is long: the dashboard lives, or lines are printed.

        At most `FIRST_S` seconds until the first update, `LATER_S` afterwards. `state.json` is
        replaced every second.
        """
        lines = self._lines.refreshing() if self._dashboard is None else nullcontext()
        with self._state.refreshing(), lines:
            yield

    def phase(self, name: str, done: float = 0, total: float | None = None) -> None:
        """Says what the run is at, and how far: `done` of `total`.

        From there "playing" goes on by itself with every sample, "evaluating" with every game.
        """
        self._spend()
        same = name == self.view.phase.name
        started = self.view.phase.started if same else time.monotonic()
        self.view.phase = Phase(name, done, total, started)
        self.waits.move()

    def add_games(
        self, games: Sequence[PlayedGame], tally: PlayTally, version: int, actor: int = 0
    ) -> None:
        """Takes in training games, and what they say, finished while `version` was current."""
        self._advance("playing", sum(each.num_samples for each in games))
        self._games.add(games, tally, version, actor)

    def add_again(self, games: Sequence[PlayedGame], tally: PlayTally) -> None:
        """Takes in training games that are on file, from before the run was resumed."""
        self._games.add_again(games, tally)

    def add_eval_episode(self, result: GameResult, version: int) -> None:
        """Takes in a finished game of the evaluation of `version`."""
        self._advance("evaluating", 1)
        self._games.add_evaluated(result, version)

    def add_failure(self, failure: GameFailure) -> None:
        """Takes in a game that raised."""
        self._games.add_failure(failure)

    def log_learner(self, update: Update) -> None:
        """Takes in the learner's metrics, under the names that they have, and refused steps."""
        self._row.update(update.metrics)
        halvings = int(update.metrics.get("learn/out_of_memory") or 0)
        lines = [memory_line(update.version, halvings)] if halvings else []
        for line in [*lines, *([refusal_line(update)] if update.refusals else [])]:
            self.warn(line)

    def log_samples(self, update: Update) -> None:
        """Takes in the samples as `update` trained on them, where their lines were asked for."""
        lines = update.lines
        if isinstance(lines, Unwritable):
            self._border(SampleFiles.name, lines.complain)
        elif lines is not None:
            lines = hide_in_line(lines)
            self._emit("sample_lines", update.version, lines)
            if wants_records(self._sinks, "samples"):
                records = [
                    parse_record(each, SampleRecord, "a line") for each in lines.splitlines()
                ]
                self._emit("samples", update.version, records)

    def log_evaluation(self, scores: Sequence[EvalScore], *, beside: bool = False) -> None:
        """Takes in how a version did against each opponent.

        `beside`: other versions have been trained meanwhile, and `end_evaluation` will come.
        """
        (self._beside if beside else self._row).update(evaluation_metrics(scores))
        self.view.scores = (*scores, *self.view.scores)[:RECENT_SCORES]
        if scores:
            self._emit("evaluation", scores[0].version, scores)
        if self._dashboard is None:
            for score in scores:
                self.print(score_line(score))

    def log_exploitability(self, found: Exploitability, *, beside: bool = False) -> None:
        """Takes in how exploitable a version is in a game; `beside` as above."""
        (self._beside if beside else self._row).update(exploitability_metrics(found))
        self.view.add_exploitability(found)
        if self._dashboard is None:
            self.print(exploitability_line(found))

    def log_offline(self, metrics: Mapping[str, float | None]) -> None:
        """Takes in how far a run on recorded games is, and what loss it has on held-out ones."""
        self._row.update(metrics)
        if "offline/held_out_loss" in metrics and self._dashboard is None:
            self.print(held_out_line(metrics))

    def keep_policies(self, version: int, policies: Mapping[str, Shares]) -> None:
        """Keep a measured version's policies in small games, to which later ones are compared."""
        if policies and not self.view.config.eval.exploitability.samples:
            self._border("policies", write_policies, self.folder, version, policies)

    def name_best(self, version: int | None) -> None:
        """Have `checkpoints/best` lead to a version; None is none."""
        self._border("checkpoints/best", self.folder.name_best, version)

    def log_alarms(self, alarms: Sequence[Alarm]) -> None:
        """Takes in what the guard has found, if anything."""
        self._row["guard/alarms"] = (self._row.get("guard/alarms") or 0) + len(alarms)
        for alarm in alarms:
            self._row[f"guard/alarm/{alarm.rule}"] = alarm.figure
            self.view.alarm = alarm_line(alarm)
            self.view.alarms += 1
            self.warn(self.view.alarm)

    def log_actions(
        self, actions: Sequence[str], best: int | None, shares: Mapping[str, float]
    ) -> None:
        """Takes in what alarms have led to: `best` is the version that a rollback goes to.

        `shares` are those of the kinds of opponents from now on.
        """
        self._row.update({f"guard/draw/{kind}": share for kind, share in shares.items()})
        for action in actions:
            self._row[f"guard/action/{action}"] = 1.0
        if "rollback" in actions:
            self._row["guard/rolled_back_to"] = best
        if actions:
            self.warn(action_line(actions, best, shares))

    def log_curriculum(self, metrics: Mapping[str, float | None]) -> None:
        """Takes in what is known of envs, and how likely each is drawn from now on."""
        self._row.update(metrics)

    def log_ratings(self, ratings: Sequence[Rating]) -> None:
        """Takes in everybody's rating, as of now."""
        self._row.update(rating_metrics(ratings))
        self.view.ratings = tuple(ratings)
        rows = [
            RatingRecord(**{**asdict(rating), "player": rating.player.name}) for rating in ratings
        ]
        self._emit("ratings", Ratings(players=rows))

    def log_worst(self, found: Mapping[str, Least], *, beside: bool = False) -> None:
        """Takes in the least score against its own past, by policy; `beside` as above."""
        (self._beside if beside else self._row).update(worst_metrics(found))
        self.view.worst = {**self.view.worst, **found}

    def log_actor(self, actor: int, stats: Mapping[str, float]) -> None:
        """Takes in an engine's counters, which count from the actor's start."""
        self._engine.add(actor, stats)
        seconds = self._seconds()
        self.view.engine = self._engine.values(seconds)
        self.view.actors = {**self.view.actors, actor: self._engine.values(seconds, actor)}

    def log_buffer(self, stats: Mapping[str, float]) -> None:
        """Takes in what the buffer holds and has dropped."""
        row: Row = {f"buffer/{name}": value for name, value in stats.items()}
        self._row.update(row)
        self.view.buffer = row

    def end_update(self, version: int) -> None:
        """Puts all that came since the last call into a row of `metrics.jsonl`.

        A run whose time is up has two rows of its last version; the second holds what came after.
        """
        self._spend()
        row = self._finish_row(version)
        is_new, self.view.version = version > self.view.version, version
        if is_new:
            self._lines.patience_s = LATER_S
        self.view.rows = (*self.view.rows, row)[-HISTORY:]
        self._emit("row", row)
        if is_new and (line := self._stale.add(row)) is not None:
            self.warn(line)
        if self._dashboard is None and is_new:
            left_s = self.view.seconds_left(self.view.clock()) or 0.0
            self.print(update_line(row, self.view.config.loop.steps, left_s))

    def end_evaluation(self, version: int) -> None:
        """Puts what came `beside` into a row of its own, which readers join to the version's."""
        row: Row = {"version": version, "time": time.time(), **self._beside}
        self._beside = {}
        self.view.rows = tuple(joined((*self.view.rows, row)))
        self._emit("row", {name: _finite(value) for name, value in row.items()})

    def state(self) -> TrackerState:
        """All that a resume needs."""
        self._spend()
        return TrackerState(
            row={name: _finite(value) for name, value in self._row.items()},
            times=self._times,
            seconds=self._seconds(),
            play=self._play.state(),
        )

    def restore(self, state: TrackerState) -> None:
        """Continue from what `state` returned."""
        self._row, self._times = dict(state.row), self._times | state.times
        self.view.row_started = time.monotonic() - state.seconds
        self._play.restore(state.play)

    def finish(self, reason: str, ending: Ending = "ended") -> None:
        """Stops the dashboard and prints what came out of the run, which ended by `reason`.

        Why it failed is on file, for others; whoever calls says it to the person at the terminal.
        """
        self._state.write(ending, reason)
        self._stop_dashboard()
        reported = self.view.config.tracking.report
        short = reason if ending == "ended" else ending
        text = partial(summary, self.folder, short, reported=reported)
        self._border("the summary", lambda: self._console.print(text()))

    def end(self, reason: str, report: Path | None) -> None:
        """Takes in that the run is over, and where its report is, if one was made."""
        self._emit("end", reason, report)

    def close(self) -> None:
        """Gives the terminal back and closes every sink; a second call does nothing."""
        self._stop_dashboard()
        self._emit("close")
        self._sinks.clear()

    def _emit(self, method: str, *arguments: object) -> None:
        self._border.emit(self._sinks, method, *arguments)

    def _advance(self, name: str, by: int) -> None:
        self.waits.move()
        phase = self.view.phase
        if phase.name == name and phase.total is not None:
            self.view.phase = phase._replace(done=min(phase.done + by, phase.total))

    def _seconds(self) -> float:
        """Since the last row; never 0, since rates are divided by it."""
        return max(time.monotonic() - self.view.row_started, 1e-9)

    def _spend(self) -> None:
        """Counts the time since the last call for the phase that the run is at."""
        now = time.monotonic()
        name = self.view.phase.name
        verb = PHASES.get(name, name.partition(" ")[0].rstrip(":"))
        self._times[verb] = self._times.get(verb, 0.0) + now - self._spent_until
        self._spent_until = now

    def _finish_row(self, version: int) -> Row:
        seconds = self._seconds()
        row: Row = {
            "version": version,
            "time": time.time(),
            **self._play.take(seconds),
            **self._engine.values(seconds),
            **self._row,
            **{f"time/{name}": value for name, value in self._times.items()},
            "time/total": seconds,
            **self._device.read(),
        }
        self._names.update(dict.fromkeys(row))
        self._row = {}
        self.view.row_started = time.monotonic()
        self._times = dict.fromkeys(self._times, 0.0)
        self._engine.reset()
        return {name: _finite(row.get(name)) for name in self._names}

    def _stop_dashboard(self) -> None:
        if self._dashboard is not None:
            self._border("the dashboard", self._dashboard.stop)
            self._dashboard = None

    def print(self, line: str) -> None:
        """Shows a line to the person at the terminal."""
        self.view.notice = line
        if self._dashboard is None:
            self._lines.say(line)

    def warn(self, line: str) -> None:
        """Shows a line that the log keeps too."""
        logger.warning(line)
        self.print(line)

    def _show(self, line: str) -> None:
        self._border("the terminal", lambda: self._console.print(Text(line), soft_wrap=True))

    def _phase_line(self) -> str:
        phase, still_s = self.view.phase, time.time() - self.waits.moved
        line = phase_line(*phase[:3], time.monotonic() - phase.started)
        waits = [wait.what for wait in self.waits.open()]
        return line if still_s < STILL_S else f"{line}{still_line(waits, still_s)}"

    def _at(self) -> dict[str, Any]:
        return {**state_of(self.view, self.waits), "view": self._shown()}

    def _shown(self) -> dict[str, Any] | None:
        """What the dashboard shows; None if that cannot be had, which is no reason to be silent."""
        found: list[dict[str, Any]] = []

        def take() -> None:
            self.view.machine = self._device.read()
            found.append(self.view.record())

        self._border("the dashboard in state.json", take)
        return found[0] if found else None


def _finite(value: float | None) -> float | None:
    """JSON has no word for what is not finite."""
    return value if value is not None and math.isfinite(value) else None
