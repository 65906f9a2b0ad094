"""What a sink is, and the border that its failures do not cross."""

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
    """A receiver of records. It must work at the start; later it may fail, and stops nothing.

    A subclass writes what it wants to see; the rest it ignores. It is called in the run's own
    loop, which waits for it. What it is given belongs to the run: to read, not to change.
    """

    name = ""
    """Its own, where its class's name would not do."""
    url: str | None = None
    """Where a person can watch it."""

    def __init__(self, config: RunConfig | None = None, folder: RunFolder | None = None) -> None:
        """A run gives both; raise `ConfigError` here for what a person has to mend."""

    def game(self, version: int, record: RecordedGame) -> None:
        """Take in a game that ended while `version` was current, as `games/` has it on file."""

    def game_line(self, version: int, purpose: Purpose, line: bytes) -> None:
        """Take in the same as the line that is on file, which costs less."""

    def game_lines(self, version: int, purpose: Purpose, lines: Sequence[bytes]) -> None:
        """Take in the lines of games that came together; by default each by `game_line`."""
        for line in lines:
            self.game_line(version, purpose, line)

    def samples(self, update: int, records: Sequence[SampleRecord]) -> None:
        """Take in the samples as an update trained on them, as `train/` has them on file."""

    def sample_lines(self, update: int, lines: bytes) -> None:
        """Take in the same as the lines that are on file, which costs less."""

    def ratings(self, record: Ratings) -> None:
        """Take in the table of ratings as it is now, as `ratings.json` has it."""

    def evaluation(self, version: int, scores: Sequence[EvalScore]) -> None:
        """Take in how a version did in its evaluation, whose games came before."""

    def row(self, row: Row) -> None:
        """Take in the metrics of an update, and of all that came since the last one."""

    def end(self, reason: str, report: Path | None) -> None:
        """Take in that the run is over, and why; `report` is its page, if one was made."""

    def close(self) -> None:
        """Finish; nothing comes after it."""


def _has_own(sink: Sink, method: str) -> bool:
    return getattr(getattr(sink, method), "__func__", None) is not getattr(Sink, method)


def takes_lines(sink: Sink) -> bool:
    """Return whether it takes in games as lines."""
    return _has_own(sink, "game_line") or _has_own(sink, "game_lines")


def wants_records(sinks: Iterable[Sink], method: Literal["game", "samples"]) -> bool:
    """Return whether any of them takes in games, or samples, as records."""
    return any(_has_own(sink, method) for sink in sinks)


class SinkBorder:
    """The border that a sink's failure does not cross: logged and reported once for each sink."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._failed: set[str] = set()

    def __call__(self, sink: str, write: Callable[P, None], *args: P.args, **kw: P.kwargs) -> None:
        """Call `write`; it is tried again at the next call even if it fails now."""
        with faults_to(partial(self._fail, sink)):
            write(*args, **kw)

    def _fail(self, sink: str, error: BaseException) -> None:
        if sink not in self._failed:
            self._failed.add(sink)
            logger.exception("writing %s failed; further failures are not logged", sink)
            self._report(f"{sink} cannot be written ({error}); the run goes on without")

    def emit(self, sinks: Iterable[Sink], method: str, *arguments: object) -> None:
        """Call a method of every sink."""
        for sink in sinks:
            self(name_of(sink), getattr(sink, method), *arguments)


def name_of(sink: Sink) -> str:
    """Return the name of a sink in messages."""
    return sink.name or type(sink).__name__
