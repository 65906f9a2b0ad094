"""Recording of a run: rows of metrics, and the sinks that receive them."""

import math
import time
from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from unstable.config import ConfigError, RunConfig
from unstable.records.folder import RunFolder
from unstable.tracking.metrics import EngineMetrics, Row, Usage
from unstable.tracking.play import PlayMetrics
from unstable.tracking.sinks import SinkMaker, open_sinks
from unstable.tracking.sinks.base import Sink, SinkBorder
from unstable.types.play import PlayTally

PHASES = {
    "playing": "play",
    "updating": "update",
    "evaluating": "evaluate",
    "publishing": "publish",
}
"""Verbs under which the time of phases is logged; other phases use the first word of their name."""


class TrackerState(BaseModel):
    """Unfinished row, without the figures of engines and device."""

    row: dict[str, float | bool | None]
    beside: dict[str, float | bool | None] = {}
    times: dict[str, float]
    seconds: float
    play: PlayTally


class Recording:
    """Collector of a run's metrics into rows, which passes rows and records to the sinks.

    Raises `ConfigError` if `folder` or a sink cannot be written.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        border: SinkBorder,
        own: Sequence[SinkMaker],
        former: Sequence[Row],
        usage: Usage = dict,
    ) -> None:
        """Open the sinks; `own` are custom ones, `former` are the rows of a run that is resumed."""
        self.play = PlayMetrics(config)
        self.engine = EngineMetrics()
        self.usage = usage
        self.row: Row = {}
        self._border = border
        self._beside: Row = {}  # metrics of a concurrent evaluation
        self._names = dict.fromkeys(former[-1] if former else ())
        self.began = self._spent_until = time.monotonic()
        self._times = dict.fromkeys(PHASES.values(), 0.0)
        try:
            folder.checkpoints.mkdir(parents=True, exist_ok=True)
            self.sinks: list[Sink] = open_sinks(config, folder, own)
        except OSError as error:
            raise ConfigError(
                f"tracking.run_dir = '{folder.root}': cannot be written ({error.strerror}); "
                "choose another folder"
            ) from None

    def emit(self, method: str, *arguments: object) -> None:
        """Call a method of every sink."""
        self._border.emit(self.sinks, method, *arguments)

    def add(self, metrics: Mapping[str, float | None], beside: bool = False) -> None:
        """Add metrics to the next row, or with `beside` to the row of a concurrent evaluation."""
        (self._beside if beside else self.row).update(metrics)

    @property
    def seconds(self) -> float:
        """Seconds since the last row; never 0, since rates are divided by it."""
        return max(time.monotonic() - self.began, 1e-9)

    def spend(self, phase: str) -> None:
        """Add the time since the last call to a phase."""
        now = time.monotonic()
        verb = PHASES.get(phase, phase.partition(" ")[0].rstrip(":"))
        self._times[verb] = self._times.get(verb, 0.0) + now - self._spent_until
        self._spent_until = now

    def end_row(self, version: int) -> Row:
        """Make a row of all metrics since the last one, and pass it to the sinks."""
        seconds = self.seconds
        row: Row = {
            "version": version,
            "time": time.time(),
            **self.play.take(seconds),
            **self.engine.values(seconds),
            **self.row,
            **{f"time/{name}": value for name, value in self._times.items()},
            "time/total": seconds,
            **self.usage(),
        }
        self._names.update(dict.fromkeys(row))
        self.row = {}
        self.began = time.monotonic()
        self._times = dict.fromkeys(self._times, 0.0)
        self.engine.reset()
        row = _finite({name: row.get(name) for name in self._names})
        self.emit("row", row)
        return row

    def end_beside(self, version: int) -> Row:
        """Make a row of the metrics of a concurrent evaluation, and pass it to the sinks."""
        row = _finite({"version": version, "time": time.time(), **self._beside})
        self._beside = {}
        self.emit("row", row)
        return row

    def state(self) -> TrackerState:
        """Return the state that `restore` takes."""
        return TrackerState(
            row=_finite(self.row),
            beside=_finite(self._beside),
            times=self._times,
            seconds=self.seconds,
            play=self.play.tally,
        )

    def restore(self, state: TrackerState) -> None:
        """Continue from what `state` returned."""
        self.row, self._beside = dict(state.row), dict(state.beside)
        self._times |= state.times
        self.began = time.monotonic() - state.seconds
        self.play.tally = state.play

    def close(self) -> None:
        """Close every sink; a second call does nothing."""
        self.emit("close")
        self.sinks.clear()


def _finite(row: Mapping[str, float | None]) -> Row:
    """Return a row with None for values that are not finite, which JSON cannot express."""
    return {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in row.items()
    }
