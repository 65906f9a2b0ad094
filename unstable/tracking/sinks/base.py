"""What a sink is, and the border that its failures do not cross."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec

from unstable.records.games import Record

logger = logging.getLogger(__name__)
P = ParamSpec("P")
Row = Mapping[str, Any]


class Sink:
    """Where what was seen is put. It must work at the start; later it may fail, and stops nothing.

    A subclass writes what it wants to see; the rest it ignores.
    """

    name = "a sink"
    """What a message calls it."""
    url: str | None = None
    """Where a person can watch it."""

    def game(self, version: int, record: Record) -> None:
        """Take in a game that ended while `version` was current."""

    def samples(self, update: int, records: Sequence[Record]) -> None:
        """Take in the samples as an update trained on them."""

    def ratings(self, record: Record) -> None:
        """Take in the table of ratings as it is now."""

    def row(self, row: Row) -> None:
        """Take in the metrics of an update."""

    def close(self) -> None:
        """Finish; nothing comes after it."""


class Guard:
    """The border that a sink's failure does not cross: logged and reported once for each sink."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._failed: set[str] = set()

    def __call__(self, sink: str, write: Callable[P, None], *args: P.args, **kw: P.kwargs) -> None:
        """Calls `write`; it is tried again at the next call even if it fails now."""
        try:
            write(*args, **kw)
        except Exception as error:
            if sink not in self._failed:
                self._failed.add(sink)
                logger.exception("writing %s failed; further failures are not logged", sink)
                self._report(f"{sink} cannot be written ({error}); the run goes on without")
