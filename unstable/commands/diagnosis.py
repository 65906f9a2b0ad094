"""Diagnosis of a run from its folder alone: `unstable doctor RUN`."""

import re
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from unstable.config import one_line
from unstable.records.files import read_small_json
from unstable.records.folder import RunFolder, existing_run
from unstable.records.text import command_line, duration
from unstable.tracking.text import phase_line
from unstable.types.processes import started

SILENT_S = 30.0
"""Seconds without a new state after which a run is not alive; it replaces its state each second."""
STILL_S = 60.0
"""Seconds without a game, an answer or a new phase that the diagnosis reports as long."""
_MOST = 1e12
"""Upper bound of the times and counts of a run; it also excludes infinity and NaN."""
_TAIL_BYTES = 2**18
_RECORD = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),\d+ (\w+) ")


class Condition(NamedTuple):
    """Condition of a run: a word, the reason, the next step, and whether something is wrong."""

    word: str  # running, stopped, died, failed, interrupted, ended, unknown
    why: str
    next: str
    wrong: bool = False

    @property
    def line(self) -> str:
        """The word, with the reason if known: "failed: no space left on device"."""
        return f"{self.word}: {self.why}" if self.why else self.word


def diagnose(run_dir: Path) -> int:
    """Print the condition of a run; return 1 if something is wrong with it, else 0.

    Raises `ConfigError` for a folder that is not a run's.
    """
    folder = existing_run(run_dir)
    state, now = status_of(folder), time.time()
    condition = condition_of(folder, state, now)
    for label, text in _lines(folder, state, condition, now):
        print(f"{label:11}{one_line(text)}")
    return int(condition.wrong)


def status_of(folder: RunFolder) -> dict[str, Any]:
    """Return the content of the run's `state.json`; {} if it cannot be read."""
    return read_small_json(folder.status) or {}


def condition_of(folder: RunFolder, state: dict[str, Any], now: float) -> Condition:
    """Return the condition of a run whose last state file is `state`."""
    is_sft = folder.examples.is_file()
    resume = command_line("unstable", "sft" if is_sft else "train", "--resume", folder.root)
    again = f"to resume: {resume}" if folder.versions() else "no checkpoint; start the run again"
    if not state:
        if folder.adapter.is_dir():  # result of an sft run
            return Condition("ended", f"its adapter is in {folder.adapter}", "nothing to do")
        return Condition("unknown", "no state.json", again)
    word, reason = str(state.get("state")), str(state.get("reason"))
    if word == "ended":
        measure = command_line("unstable", "eval", folder.root)
        return Condition("ended", reason, "nothing to do" if is_sft else measure)
    if word != "running":
        return Condition(word, reason, again, word == "failed")
    silent, pid = now - _number(state, "written"), state.get("pid")
    if silent < -SILENT_S:
        return Condition(
            "unknown", f"state.json is {duration(-silent)} ahead of this machine's clock", again
        )
    if silent < SILENT_S:
        return Condition("running", f"process {pid} on {state.get('host')}", "nothing to do")
    since = f"nothing was written for {duration(silent)}"
    if state.get("host") != socket.gethostname():
        return Condition("died", f"{since} on {state.get('host')}", again, True)
    if isinstance(pid, int) and pid > 0 and _is_there(pid, state.get("pid_started")):
        stopped = f"process {pid} exists, but {since}: it is stopped or gets no CPU time"
        return Condition("stopped", stopped, f"kill -CONT {pid}, or kill {pid}; {again}", True)
    return Condition("died", f"process {pid} no longer exists; {since}", again, True)


def _lines(
    folder: RunFolder, state: dict[str, Any], condition: Condition, now: float
) -> Iterator[tuple[str, str]]:
    yield "run", str(folder.root)
    yield "state", condition.line
    if state:
        at = _number(state, "written") if condition.word != "running" else now
        phase = state["phase"] if isinstance(state.get("phase"), dict) else {}
        total, done = _number(phase, "total"), _number(phase, "done")
        seconds = max(0.0, at - _number(phase, "since", at))
        if condition.word != "ended":
            yield "phase", phase_line(str(phase.get("name")), done, total or None, seconds)
        waits = state.get("waits")
        for wait in waits if isinstance(waits, list) else []:
            if isinstance(wait, dict):
                since = duration(max(0.0, at - _number(wait, "since", at)))
                yield "waits for", f"{wait.get('what')} · {since}"
        still = max(0.0, now - _number(state, "moved", now))
        is_long = still > STILL_S and condition.word not in ("ended", "interrupted")
        yield "progress", f"{duration(still)} ago" + (", unusually long" if is_long else "")
        failed = f", {state['failures']} games failed" if state.get("failures") else ""
        yield "version", f"{state.get('version')} of {state.get('versions')}{failed}"
    if versions := folder.versions():
        written = now - folder.checkpoint(versions[-1]).stat().st_mtime
        yield "checkpoint", f"{versions[-1]}, {duration(max(0.0, written))} ago"
    for path in sorted((folder.root / "logs").glob("*.log")):
        error = _last_error(path, _number(state, "started"))
        if error is not None and condition.word != "ended":
            yield "error", f"{path.name}: {error}"
    yield "next", condition.next


def _last_error(path: Path, since: float) -> str | None:
    """Return a log's last error with the end of its traceback; None without one.

    It reads only the log's end, and ignores errors before `since` (seconds), of an earlier start.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return None
    starts = [index for index, line in enumerate(lines) if _RECORD.match(line)] + [len(lines)]
    for begin, end in reversed(list(zip(starts, starts[1:], strict=False))):
        found = _RECORD.match(lines[begin])
        if found and found[2] in ("ERROR", "CRITICAL") and _time(found[1]) >= since - 1:
            raised = [line for line in lines[begin + 1 : end] if re.match(r"[\w.]+(:|$)", line)]
            return lines[begin] + (f" ({raised[-1][:300]})" if raised else "")
    return None


def _time(text: str) -> float:
    """Return a log's time in seconds; 0 if it is invalid."""
    try:
        return time.mktime(time.strptime(text, "%Y-%m-%d %H:%M:%S"))
    except (ValueError, OverflowError):
        return 0.0


def _number(values: dict[str, Any], name: str, default: float = 0.0) -> float:
    value = values.get(name)
    if isinstance(value, int | float) and abs(value) < _MOST:
        return float(value)
    return default


def _is_there(pid: int, ticks: object) -> bool:
    """Return whether the run's process exists, rather than another one with its id."""
    found = started(pid)
    return found is not None and (not isinstance(ticks, int) or found == ticks)
