"""Files that are whole or not there, one recipe for each kind, and the format that they name."""

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


def write_whole(path: Path, content: bytes, *, synced: bool = True) -> None:
    """Replace the file at once: whoever reads finds the old content or the new one.

    With `synced` either outlasts a power cut. Its folder has to be there.
    """
    draft = path.with_name(f".{path.name}.tmp")
    try:
        if synced:
            write_synced(draft, content)
        else:
            draft.write_bytes(content)
        os.replace(draft, path)
    except OSError:  # such as a full disk, which the draft need not fill
        draft.unlink(missing_ok=True)
        raise


def check_target(path: Path, field: str) -> None:
    """Raise `ConfigError` unless a file can be put there, or take the place of a file.

    Nothing is written through a link, nor to a device. `field` is how a message names the path.
    """
    place = f"{field} = {str(path)!r}"
    if not path.parent.is_dir():
        raise ConfigError(f"{place}: no such folder; give one that is there")
    if path.is_symlink():
        raise ConfigError(f"{place}: a link; give the file that it shall be")
    if path.is_dir():
        raise ConfigError(f"{place}: a folder; give the file that it shall be")
    if path.exists() and not path.is_file():
        raise ConfigError(f"{place}: a device, a pipe or the like; give a file's name")


@contextlib.contextmanager
def new_folder(folder: Path, *, replace: bool = False) -> Iterator[Path]:
    """A scratch folder that becomes `folder`, with all that was put into it; or nothing does.

    With `replace` it takes the place of an older one, or leaves that of another process that was
    faster; else it raises `FileExistsError` where `folder` is there. Its parent's parent has to be
    there: a run's folder that was removed must not come back.
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
                raise FileExistsError(f"{folder} is there already") from error
        sync(folder.parent)
    finally:
        shutil.rmtree(outer, ignore_errors=True)


@contextlib.contextmanager
def new_checkpoint(folder: Path) -> Iterator[Path]:
    """Make the folder of a version like `new_folder`; what a killed process left of it goes.

    Raises `FileExistsError` rather than write over any.
    """
    if folder.exists():
        raise FileExistsError(f"checkpoint {folder} is there already; nothing is overwritten")
    for left in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(left)
    with new_folder(folder) as scratch:
        yield scratch


@contextlib.contextmanager
def one_process(path: Path) -> Iterator[None]:
    """Other processes that make the same file or folder wait; `OSError` after ten minutes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_name(f".{path.name}.lock"), timeout=LOCK_WAIT_S):
        yield


def json_line(record: Mapping[str, Any] | Struct) -> bytes:
    """The record, with its format, as one line of strict JSON, all control characters escaped.

    Raises `ValueError` at a number that is not finite.
    """
    return json_lines([record])


def json_lines(records: Iterable[Mapping[str, Any] | Struct]) -> bytes:
    """The lines of `json_line`, one after the other."""
    head = b'{"format":%d' % FORMAT
    texts = json_parts(records)
    return b"".join([head + b"," * (len(text) > 2) + text[1:] + b"\n" for text in texts])


def plain(value: Any) -> Any:
    """A record, a player or the like as JSON has it."""
    return to_builtins(value, enc_hook=_named)


def _named(value: Any) -> str:
    if isinstance(value, PlayerId):
        return value.name
    raise TypeError(f"{type(value).__name__} is nothing that a file holds")


_ENCODER = json_codec.Encoder(enc_hook=_named)


def json_parts(values: Iterable[object]) -> list[bytes]:
    """Parts of one line: strict JSON, all control characters escaped, numbers in one notation.

    Raises `ValueError` at a number that is not finite.
    """
    values = list(values)
    try:
        texts = [_text(value) for value in values]
    except (PydanticSerializationError, UnicodeEncodeError):  # half a character: `json` passes it
        texts = [_json(value) for value in values]
    # Backwards, which costs a third of `in`; as a number, it is an error.
    if any(max(map(text.rfind, ("NaN", "Infinity"))) >= 0 for text in texts):
        texts = [_json(value) for value in values]
    if has_secrets():
        texts = list(map(hide_secrets, texts))
    return [_shown(text).encode() for text in texts]


def _text(value: object) -> str:
    if isinstance(value, Struct):
        text = _ENCODER.encode(value)
        if b"null" not in text:  # which may stand for a number that is not finite
            return text.decode()
    return to_json(value, inf_nan_mode="constants", fallback=plain).decode()


def hide_in_line(line: bytes) -> bytes:
    """A line that another process made, without the keys that this one keeps secret."""
    return hide_in_lines([line])[0]


def hide_in_lines(lines: list[bytes]) -> list[bytes]:
    """The same of several."""
    return [hide_secrets(line.decode()).encode() for line in lines] if has_secrets() else lines


def _shown(text: str) -> str:
    # Of the control characters that are ASCII JSON has spelled out all but one.
    return text if text.isascii() and "\x7f" not in text else escape_control(text)


def _json(value: object) -> str:
    separators = (",", ":")
    return json.dumps(
        plain(value), ensure_ascii=False, allow_nan=False, separators=separators, default=plain
    )


def read_small_json(path: Path, most_bytes: int = 2**23) -> dict[str, Any] | None:
    """The object in a small file; None where there is none that can be read."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(most_bytes))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


class LineFile:
    """A file of JSON lines that only ever holds whole lines, whatever came of a former write.

    Its folder has to be there: one that was removed must not come back without what it held.
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
        """Append lines that are JSON, with their ends; raises as `write` does."""
        if not self._whole:  # the last one could not be written
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
    """Shorten a file of lines, if it is there, to `end` bytes, or by half a line at its end."""
    if path.exists():
        whole = path.read_bytes().rfind(b"\n") + 1
        os.truncate(path, whole if end is None else min(whole, end))


def whole_size(path: Path, block: int = 2**20) -> int:
    """Bytes of a file up to the end of its last whole line."""
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
    """Replace the file at once by JSON lines."""
    write_whole(path, json_lines(records))


def whole_lines(file: Iterable[bytes]) -> Iterator[bytes]:
    """A run's lines, but for one without its end: it is being written, or the run died in it."""
    return (line for line in file if line.endswith(b"\n"))


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line's place, file:line, and the object in it; blank lines are left out.

    For a file that a person gives; a run's own are read by `records.reading`. Raises `ConfigError`
    for a file that is not there and for a line that is no JSON object or one of another format.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; give a JSONL file")
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            place = f"{path}:{number}"
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError:
                raise ConfigError(f"{place}: not text in UTF-8; save it as such") from None
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", "too deep, or a number too long")
                raise ConfigError(f"{place}: not JSON ({reason}); write an object a line") from None
            if not isinstance(row, dict):
                raise ConfigError(f"{place}: a {type(row).__name__}; write an object a line")
            check_format(row, place)
            yield place, row
