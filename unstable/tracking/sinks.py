"""Where what was seen is put: JSON lines, whole files, Weights & Biases.

A sink must work at the start. Later it may fail, is told about once, and stops nothing.
"""

import errno
import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, ParamSpec

from unstable.config import ConfigError, RunConfig
from unstable.folder import RunFolder

logger = logging.getLogger(__name__)
P = ParamSpec("P")


def json_line(record: Mapping[str, Any]) -> bytes:
    """The record as one line of strict JSON; raises `ValueError` at a number that is not finite."""
    text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode() + b"\n"


class LineFile:
    """A file of JSON lines that only ever holds whole lines, whatever befell a former write."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._end = path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0
        self._file = path.open("ab", buffering=0)
        self._file.truncate(self._end)

    def write(self, record: Mapping[str, Any]) -> None:
        """Appends a line; raises `OSError` if not all of it could be written."""
        line = json_line(record)
        self._file.truncate(self._end)
        if self._file.write(line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self._end += len(line)

    def close(self) -> None:
        self._file.close()


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a `metrics.jsonl`, oldest first."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_whole(path: Path, content: bytes) -> None:
    """Replaces the file at once: whoever reads finds the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.tmp")
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Replaces the file at once by JSON lines."""
    write_whole(path, b"".join(json_line(record) for record in records))


class Guard:
    """The border that a sink's failure does not cross: logged and told once for each sink."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._failed: set[str] = set()

    def __call__(self, sink: str, write: Callable[P, None], *args: P.args, **kw: P.kwargs) -> None:
        """Calls `write`; it is tried again at the next call even if it fails now."""
        try:
            write(*args, **kw)
        except Exception as error:
            if sink not in self._failed:
                self._failed.add(sink)
                logger.exception("writing %s failed; further failures are not logged", sink)
                self._tell(f"{sink} cannot be written ({error}); the run goes on without")


class WandbRun:
    """One Weights & Biases run, which a resumed run continues; raises `ConfigError` at the start.

    `WANDB_MODE=offline` keeps it in the run's folder, to be synced by hand.
    """

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        import wandb

        # Run folders are named by mode, time and id, the id last; a resume finds it there.
        former = sorted((folder.root / "wandb").glob("*run-*-*"))
        try:
            self._run = wandb.init(
                project=config.tracking.wandb,
                name=folder.root.name,
                dir=folder.root,
                config=config.model_dump(mode="json"),
                id=former[-1].name.rpartition("-")[2] if former else None,
                resume="allow",
                settings=wandb.Settings(silent=True, console="off"),
            )
        except wandb.errors.Error as error:
            raise ConfigError(
                f"tracking.wandb = {config.tracking.wandb!r}: {' '.join(str(error).split())}; "
                "run `wandb login`, set WANDB_MODE=offline, or leave tracking.wandb out"
            ) from None
        self._run.define_metric("*", step_metric="version")

    @property
    def url(self) -> str | None:
        """Where the run can be watched; None if it is offline."""
        return None if self._run.offline else self._run.url

    def log(self, row: Mapping[str, float | None]) -> None:
        """Logs what has a value."""
        self._run.log({name: value for name, value in row.items() if value is not None})

    def close(self) -> None:
        self._run.finish()
