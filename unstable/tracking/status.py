"""Status of a run in `state.json`, replaced once per second while it runs.

`unstable doctor RUN` reads it, as may any program that monitors a run from outside.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

from unstable.records.files import json_line, write_whole
from unstable.records.folder import RunFolder
from unstable.tracking.lines import repeated
from unstable.tracking.view import RunView
from unstable.types.processes import ProcessId, Waits

EVERY_S = 1.0
Ending = Literal["ended", "interrupted", "failed"]
"""Way in which a run ended, as in `state.json`; before, the state is `running`."""


def state_of(view: RunView, waits: Waits) -> dict[str, Any]:
    """Return the content of `state.json`, without the dashboard's."""
    since = time.time() - time.monotonic()
    return {
        "phase": {
            "name": view.phase.name,
            "done": view.phase.done,
            "total": view.phase.total,
            "since": since + view.phase.started,
        },
        "moved": waits.moved,
        "waits": [wait._asdict() for wait in waits.open()],
        "processes": dict(waits.processes),
        "version": view.version,
        "versions": view.config.loop.steps,
        "games": view.games,
        "failures": view.failures,
        "games_in_flight": view.engine.get("collect/engine/games_in_flight"),
        "notice": view.notice,
    }


class StatusFile:
    """Writer of `state.json`; `border` reports what cannot be written, which stops nothing.

    `read` returns the current state; the file also names the host, the process and the time.
    """

    def __init__(
        self,
        folder: RunFolder,
        read: Callable[[], Mapping[str, Any]],
        border: Callable[[str, Callable[[], None]], None],
    ) -> None:
        self._path, self._read, self._border = folder.status, read, border
        host, _, pid, ticks = ProcessId.own()
        self._own = {"host": host, "pid": pid, "pid_started": ticks, "started": time.time()}

    @contextmanager
    def refreshing(self) -> Iterator[None]:
        """Replace the file every second from a thread, even while the loop itself is blocked."""
        self._write_running()
        with repeated(self._write_running, EVERY_S):
            yield

    def _write_running(self) -> None:
        self.write("running")

    def write(self, state: str, reason: str = "") -> None:
        """Replace the file; `state` is running, ended, interrupted or failed, `reason` says why."""
        self._border("state.json", lambda: self._write(state, reason))

    def _write(self, state: str, reason: str) -> None:
        own = {"state": state, "reason": reason, **self._own, "written": time.time()}
        # No fsync: after a power failure the last second's state is not needed.
        write_whole(self._path, json_line({**own, **self._read()}), synced=False)
