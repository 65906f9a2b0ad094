"""Files that are whole or not there, one recipe for each kind, and the format that they name."""

import contextlib
import errno
import fcntl
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from unstable.config import FORMAT, ConfigError, check_format, escape_control

_LOCK_WAIT_S = 0.2
_LOCK_TRIES = 3000


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, outlast a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file that outlasts a power cut."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_whole(path: Path, content: bytes) -> None:
    """Replace the file at once: whoever reads finds the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.tmp")
    write_synced(draft, content)
    os.replace(draft, path)


@contextlib.contextmanager
def new_folder(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """A scratch folder that becomes `folder`, with all that was put into it; or nothing does.

    With `replace` it takes the place of an older one, or leaves that of another process that was
    faster; else it raises `FileExistsError` where `folder` is there.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    outer = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    scratch = outer / folder.name
    scratch.mkdir()
    try:
        yield scratch
        for path in (*scratch.iterdir(), scratch):
            sync(path)
        if replace:
            shutil.rmtree(folder, ignore_errors=True)
        try:
            scratch.rename(folder)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
            if not replace:
                raise FileExistsError(f"{folder} is there already") from error
        sync(folder.parent)
    finally:
        shutil.rmtree(outer, ignore_errors=True)


@contextlib.contextmanager
def one_process(path: Path) -> Iterator[None]:
    """Other processes that make the same file or folder wait meanwhile; ten minutes at most."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    with lock.open("w") as file:  # which the system unlocks, however its process ends
        for _ in range(_LOCK_TRIES):
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(_LOCK_WAIT_S)
        else:
            raise TimeoutError(errno.ETIMEDOUT, f"another process still makes it; see {lock}")
        yield


def json_line(record: Mapping[str, Any]) -> bytes:
    """The record, with its format, as one line of strict JSON, all control characters escaped.

    Raises `ValueError` at a number that is not finite.
    """
    whole = {"format": FORMAT, **record}
    text = json.dumps(whole, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return escape_control(text).encode() + b"\n"


class LineFile:
    """A file of JSON lines that only ever holds whole lines, whatever came of a former write."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._end = path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0
        self._file = path.open("ab", buffering=0)
        self._file.truncate(self._end)

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a line; raises `OSError` if not all of it could be written."""
        line = json_line(record)
        self._file.truncate(self._end)
        if self._file.write(line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self._end += len(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def write_lines(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """Replace the file at once by JSON lines."""
    write_whole(path, b"".join(json_line(record) for record in records))


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line's place, file:line, and the object in it; blank lines are left out.

    Raises `ConfigError` for a file that is not there and for a line that is no JSON object or one
    of another format.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; give a JSONL file")
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            place = f"{path}:{number}"
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8"))
            except UnicodeDecodeError:
                raise ConfigError(f"{place}: not text in UTF-8; save it as such") from None
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", "too deep, or a number too long")
                raise ConfigError(f"{place}: not JSON ({reason}); write an object a line") from None
            if not isinstance(row, dict):
                raise ConfigError(f"{place}: a {type(row).__name__}; write an object a line")
            check_format(row, place)
            yield place, row


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a `metrics.jsonl`, oldest first; none where there is no such file."""
    return [row for _, row in read_lines(path)] if path.exists() else []
