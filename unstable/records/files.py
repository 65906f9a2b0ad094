"""Files that are complete or absent, with one writer for each kind, and the format they name."""

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock
from msgspec import Struct, to_builtins
from msgspec import json as json_codec
from pydantic_core import PydanticSerializationError, to_json

from unstable.config import (
    FORMAT,
    ConfigError,
    check_format,
    escape_control,
    has_secrets,
    hide_secrets,
)
from unstable.types import PlayerId

LOCK_WAIT_S = 600.0
_PER_LINE = "write one JSON object per line"


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, content: bytes) -> None:
    """Write a file that survives a power cut."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_whole(path: Path, content: bytes, *, synced: bool = True) -> None:
    """Replace a file atomically: a reader finds the old content or the new.

    With `synced` either survives a power cut. The folder must exist.
    """
    draft = path.with_name(f".{path.name}.tmp")
    try:
        if synced:
            write_synced(draft, content)
        else:
            draft.write_bytes(content)
        os.replace(draft, path)
    except OSError:  # e.g. a full disk: free the draft's space
        draft.unlink(missing_ok=True)
        raise


def check_target(path: Path, field: str) -> None:
    """Raise `ConfigError` unless a file can be created at a path or replaced there.

    Links and devices are refused. `field` is the name of the path in messages.
    """
    place = f"{field} = {str(path)!r}"
    if not path.parent.is_dir():
        raise ConfigError(f"{place}: folder not found; create it or give an existing one")
    if path.is_symlink():
        raise ConfigError(f"{place}: is a symbolic link; give a regular file")
    if path.is_dir():
        raise ConfigError(f"{place}: is a folder; give a file")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{place}: is not a regular file; give a regular file")


@contextlib.contextmanager
def new_folder(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a scratch folder that becomes `folder` with all its content, or is discarded on errors.

    With `replace` it replaces an older folder, or keeps the folder of a faster process; otherwise
    it raises `FileExistsError` if `folder` exists. The grandparent must exist: a run's folder that
    was removed must not reappear.
    """
    folder.parent.mkdir(exist_ok=True)
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
                raise FileExistsError(f"{folder} already exists") from error
        sync(folder.parent)
    finally:
        shutil.rmtree(outer, ignore_errors=True)


@contextlib.contextmanager
def new_checkpoint(folder: Path) -> Iterator[Path]:
    """Yield a scratch folder as `new_folder` does, after removing what a killed process left of it.

    Raises `FileExistsError` if `folder` exists; nothing is overwritten.
    """
    if folder.exists():
        raise FileExistsError(f"checkpoint {folder} already exists and is never overwritten")
    for left in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(left)
    with new_folder(folder) as scratch:
        yield scratch


@contextlib.contextmanager
def one_process(path: Path) -> Iterator[None]:
    """Exclude other processes that make the file or folder; `OSError` after ten minutes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock"), timeout=LOCK_WAIT_S):
        yield


def json_line(record: object) -> bytes:
    """Return a record, with its format, as a line of strict JSON with control characters escaped.

    Raises `ValueError` for a number that is not finite.
    """
    return json_lines([record])


def json_lines(records: Iterable[object]) -> bytes:
    """Return the lines of several records, concatenated; see `json_line`."""
    head = b'{"format":%d' % FORMAT
    texts = json_parts(records)
    return b"".join([head + b"," * (len(text) > 2) + text[1:] + b"\n" for text in texts])


def plain(value: Any) -> Any:
    """Return a record, a player or a similar value as JSON values."""
    return to_builtins(value, enc_hook=_named)


def _named(value: Any) -> str:
    if isinstance(value, PlayerId):
        return value.name
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


_ENCODER = json_codec.Encoder(enc_hook=_named)


def json_parts(values: Iterable[object]) -> list[bytes]:
    """Return parts of a line: strict JSON, control characters escaped, numbers in one notation.

    Raises `ValueError` for a number that is not finite.
    """
    values = list(values)
    try:
        texts = [_text(value) for value in values]
    except (PydanticSerializationError, UnicodeEncodeError):  # `json` accepts lone surrogates
        texts = [_json(value) for value in values]
    # `_json` rejects NaN and infinity. `rfind` takes a third of the time of `in`.
    if any(max(map(text.rfind, ("NaN", "Infinity"))) >= 0 for text in texts):
        texts = [_json(value) for value in values]
    if has_secrets():
        texts = list(map(hide_secrets, texts))
    return [_shown(text).encode() for text in texts]


def _text(value: object) -> str:
    if isinstance(value, Struct):
        text = _ENCODER.encode(value)
        if b"null" not in text:  # msgspec also writes NaN and infinity as null
            return text.decode()
    return to_json(value, inf_nan_mode="constants", fallback=plain).decode()


def hide_in_lines(lines: list[bytes]) -> list[bytes]:
    """Return lines from another process without the secrets that this process knows."""
    return [hide_secrets(line.decode()).encode() for line in lines] if has_secrets() else lines


def _shown(text: str) -> str:
    # JSON has escaped all ASCII control characters except DEL.
    return text if text.isascii() and "\x7f" not in text else escape_control(text)


def _json(value: object) -> str:
    separators = (",", ":")
    return json.dumps(
        plain(value), ensure_ascii=False, allow_nan=False, separators=separators, default=plain
    )


def read_small_json(path: Path, most_bytes: int = 2**23) -> dict[str, Any] | None:
    """Return the object in a small file; None if the file is missing or not an object."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(most_bytes))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


class LineFile:
    """File of JSON lines that only holds whole lines, even after an interrupted write.

    The folder must exist: a removed folder must not reappear without its content.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._end = path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0
        self._file = path.open("ab", buffering=0)
        self._file.truncate(self._end)
        self._whole = True

    def write(self, record: Mapping[str, Any] | Struct) -> None:
        """Append a record's line; raises `OSError` if not all of it could be written."""
        self.append(json_line(record))

    def append(self, lines: bytes) -> None:
        """Append JSON lines with their ends; raises `OSError` if not all could be written."""
        if not self._whole:  # the previous write failed
            self._file.truncate(self._end)
        self._whole = False
        if self._file.write(lines) < len(lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self._whole = True
        self._end += len(lines)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def cut(path: Path, end: int | None = None) -> None:
    """Shorten a file of lines, if it exists, to `end` bytes at most, and to whole lines."""
    if path.exists():
        whole = path.read_bytes().rfind(b"\n") + 1
        os.truncate(path, whole if end is None else min(whole, end))


def whole_size(path: Path, block: int = 2**20) -> int:
    """Return the size of a file in bytes up to the end of its last whole line."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        while end:
            start = max(0, end - block)
            file.seek(start)
            found = file.read(end - start).rfind(b"\n")
            if found >= 0:
                return start + found + 1
            end = start
    return 0


def write_lines(path: Path, records: Iterable[Mapping[str, Any] | Struct]) -> None:
    """Replace a file atomically by JSON lines."""
    write_whole(path, json_lines(records))


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each line's place, file:line, and the object in it; blank lines are left out.

    For a file that a user gives; `records.reading` reads a run's own files. Raises `ConfigError`
    for a missing file, and for a line that is not a JSON object or has another format.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: file not found; give a JSONL file")
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            place = f"{path}:{number}"
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError:
                raise ConfigError(f"{place}: not UTF-8; save the file as UTF-8") from None
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", "nested too deeply, or a number is too long")
                raise ConfigError(f"{place}: not JSON ({reason}); {_PER_LINE}") from None
            if not isinstance(row, dict):
                raise ConfigError(f"{place}: {type(row).__name__}, not an object; {_PER_LINE}")
            check_format(row, place)
            yield place, row
