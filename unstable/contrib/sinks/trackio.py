"""Sink that writes to trackio, a local-first tracker: `tracking.sinks: trackio`."""

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

import trackio

from unstable.config import RunConfig
from unstable.records.folder import RunFolder
from unstable.records.reading import read_rows
from unstable.tracking.sinks.base import Row, Sink


class TrackioRun(Sink):
    """Run of the project `TRACKIO_PROJECT` (default: unstable), which a resumed run continues.

    It receives every metric by version. Trackio keeps runs in `TRACKIO_DIR`, or sends them to the
    Space or server that its own variables name. After a resume, versions that the interrupted run
    had logged beyond its checkpoint appear twice.
    """

    name = "trackio"

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        with _quiet():
            self._run = trackio.init(
                os.environ.get("TRACKIO_PROJECT", "unstable"),
                name=config.tracking.name or folder.root.name,
                config=config.model_dump(mode="json"),
                resume="allow" if read_rows(folder.metrics) else "never",
                embed=False,
                auto_log_gpu=False,  # rows have the machine's usage
                auto_log_cpu=False,
            )

    def row(self, row: Row) -> None:
        """Log all metrics that have a value."""
        values = {name: value for name, value in row.items() if value is not None}
        values.pop("time", None)  # trackio has its own
        self._run.log(values, step=int(values.pop("version")))

    def end(self, reason: str, report: Path | None) -> None:
        """Log why the run ended."""
        self._run.log({"reason": reason})

    def close(self) -> None:
        """End the run, whose metrics are sent before."""
        with _quiet():
            self._run.finish()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop what trackio prints, which would disturb the dashboard."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield
