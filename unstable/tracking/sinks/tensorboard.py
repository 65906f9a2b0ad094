"""Sink that writes to TensorBoard."""

import time
from importlib.util import find_spec
from typing import Any

from unstable.config import ConfigError
from unstable.config.plugins import import_users
from unstable.records.folder import RunFolder
from unstable.records.reading import read_rows
from unstable.tracking.sinks.base import Row, Sink
from unstable.types.metrics import metric


def check_tensorboard() -> None:
    """Raise `ConfigError` if the package is not installed or cannot be imported."""
    if find_spec("tensorboard") is None:
        raise ConfigError(
            "tracking.tensorboard = true: tensorboard is not installed; run `pip install "
            "tensorboard`, or remove tracking.tensorboard"
        )
    # Raises if its version does not match the installed protobuf.
    import_users("tensorboard.summary.writer.event_file_writer", "tracking.tensorboard = true")


class TensorBoard(Sink):
    """Scalars over versions, in `tensorboard/` of the run's folder.

    A resumed run adds a file of events that first purges those after the version it resumes from.
    """

    name = "TensorBoard"

    def __init__(self, folder: RunFolder) -> None:
        check_tensorboard()
        from tensorboard.compat.proto import event_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._events = event_pb2
        self._writer = EventFileWriter(str(folder.tensorboard))
        self._described: set[str] = set()
        if rows := read_rows(folder.metrics):
            again = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._add(rows[-1]["version"] + 1, session_log=again)

    def row(self, row: Row) -> None:
        """Write all metrics that have a value, and flush so that they are visible at once."""
        given = {name: value for name, value in row.items() if value is not None}
        version = given.pop("version")
        values = [
            {"tag": name, "simple_value": value, "metadata": self._description(name)}
            for name, value in given.items()
        ]
        self._add(version, summary={"value": values})

    def _description(self, name: str) -> dict[str, str]:
        """Return the summary metadata of a chart; TensorBoard reads it from the first event."""
        declared = None if name in self._described else metric(name)
        self._described.add(name)
        text = "" if declared is None else f"{declared.meaning} ({declared.unit})"
        return {"summary_description": text} if text else {}

    def close(self) -> None:
        self._writer.close()

    def _add(self, version: int, **what: Any) -> None:
        self._writer.add_event(self._events.Event(wall_time=time.time(), step=version, **what))
        self._writer.flush()
