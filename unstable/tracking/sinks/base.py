"""Base class of sinks, and the border that contains their failures."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, ParamSpec

from unstable.config import RunConfig
from unstable.config.plugins import faults_to
from unstable.records.folder import RunFolder
from unstable.records.shapes import Ratings, SampleRecord
from unstable.types import EvalScore, Purpose, RecordedGame

logger = logging.getLogger(__name__)
P = ParamSpec("P")
Row = Mapping[str, Any]


class Sink:
    """Receiver of records. It must work at the start; later failures stop nothing.

    A subclass overrides the methods whose records it needs. They are called in the run's own loop,
    which waits for them. Arguments belong to the run: a sink may read but not change them.
    """

    name = ""
    """Name in messages; "" uses the class's name."""
    url: str | None = None
    """Address where a person can view the sink; None if there is none."""

    def __init__(self, config: RunConfig | None = None, folder: RunFolder | None = None) -> None:
        """Open the sink; a run passes both. Raise `ConfigError` for what a user must fix."""

    def game(self, version: int, record: RecordedGame) -> None:
        """Receive a game that ended while `version` was current, as recorded in `games/`."""

    def game_line(self, version: int, purpose: Purpose, line: bytes) -> None:
        """Receive a game as its recorded line, which costs less than `game`."""

    def game_lines(self, version: int, purpose: Purpose, lines: Sequence[bytes]) -> None:
        """Receive the lines of games that arrived together; by default pass each to `game_line`."""
        for line in lines:
            self.game_line(version, purpose, line)

    def samples(self, update: int, records: Sequence[SampleRecord]) -> None:
        """Receive the samples that an update trained on, as recorded in `train/`."""

    def sample_lines(self, update: int, lines: bytes) -> None:
        """Receive the samples as their recorded lines, which costs less than `samples`."""

    def ratings(self, record: Ratings) -> None:
        """Receive the current table of ratings, as in `ratings.json`."""

    def evaluation(self, version: int, scores: Sequence[EvalScore]) -> None:
        """Receive the scores of a version's evaluation, whose games came before."""

    def row(self, row: Row) -> None:
        """Receive the metrics of an update, and all others since the last row."""

    def end(self, reason: str, report: Path | None) -> None:
        """Receive the reason for the run's end and its report's path, None without a report."""

    def close(self) -> None:
        """Close the sink; nothing follows."""


def _has_own(sink: Sink, method: str) -> bool:
    return getattr(getattr(sink, method), "__func__", None) is not getattr(Sink, method)


def takes_lines(sink: Sink) -> bool:
    """Return whether the sink receives games as lines."""
    return _has_own(sink, "game_line") or _has_own(sink, "game_lines")


def wants_records(sinks: Iterable[Sink], method: Literal["game", "samples"]) -> bool:
    """Return whether any of the sinks receives games, or samples, as records."""
    return any(_has_own(sink, method) for sink in sinks)


class SinkBorder:
    """Border that contains sinks' failures: each sink's first one is logged and reported."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._failed: set[str] = set()

    def __call__(self, sink: str, write: Callable[P, None], *args: P.args, **kw: P.kwargs) -> None:
        """Call `write`; a failure does not prevent later calls."""
        with faults_to(partial(self._fail, sink)):
            write(*args, **kw)

    def _fail(self, sink: str, error: BaseException) -> None:
        if sink not in self._failed:
            self._failed.add(sink)
            logger.exception("writing %s failed; further failures are not logged", sink)
            self._report(f"{sink} cannot be written ({error}); the run continues without it")

    def emit(self, sinks: Iterable[Sink], method: str, *arguments: object) -> None:
        """Call a method of every sink."""
        for sink in sinks:
            self(name_of(sink), getattr(sink, method), *arguments)


def name_of(sink: Sink) -> str:
    """Return the name of a sink in messages."""
    return sink.name or type(sink).__name__
