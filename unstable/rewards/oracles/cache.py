"""Answers by the content of their questions: in memory, and in a file that processes share.

The file has one JSON object per line and is append-only. Readers skip a line that a crashed process
left incomplete.
"""

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

MOST = 200_000
"""Most answers in memory; the oldest are evicted first."""


def digest(value: Any) -> str:
    """Return a key for a plain value: SHA-256 of its JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class Cache:
    """A term's answers, by `digest`."""

    def __init__(self, path: Path | None = None) -> None:
        """Create the cache; `path` is shared with other processes, None for memory alone."""
        self._path = path
        self._found: dict[str, float | None] = {}
        self._end = 0  # bytes read from the file

    @property
    def problem(self) -> str:
        """Reason for which the file cannot hold answers; empty if it can."""
        if self._path is None or not self._path.exists():
            return ""
        if not self._path.is_file():
            return f"{self._path}: not a file; name a file"
        self.look()
        with self._path.open("rb") as file:
            is_other = bool(file.readline().strip()) and not self._found
        return f"{self._path}: not a file of cached answers; name another" if is_other else ""

    def look(self) -> None:
        """Read the answers that other processes have added to the file."""
        if self._path is None or not self._path.is_file():
            return
        if self._path.stat().st_size <= self._end:
            return
        with self._path.open("rb") as file:
            file.seek(self._end)
            for line in file:
                if not line.endswith(b"\n"):  # another process is writing it
                    return
                self._end += len(line)
                self._read(line)

    def __contains__(self, key: str) -> bool:
        return key in self._found

    def __getitem__(self, key: str) -> float | None:
        return self._found[key]

    def add(self, answers: Mapping[str, float | None]) -> None:
        """Store answers; raises `OSError` if the file cannot be written."""
        for key, value in answers.items():
            self._keep(key, value)
        if self._path is not None and answers:
            rows = ({"key": key, "value": value} for key, value in answers.items())
            _append(self._path, "".join(json.dumps(row) + "\n" for row in rows).encode())

    def _read(self, line: bytes) -> None:
        try:
            row = json.loads(line)
            key, value = row["key"], row["value"]
        except (ValueError, TypeError, KeyError):
            return
        is_number = type(value) in (int, float) and math.isfinite(value)
        if isinstance(key, str) and (value is None or is_number):
            self._keep(key, value)

    def _keep(self, key: str, value: float | None) -> None:
        self._found[key] = value
        if len(self._found) > MOST:
            del self._found[next(iter(self._found))]


def _append(path: Path, lines: bytes) -> None:
    """Append whole lines under a lock, after ending an incomplete last line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    with lock, path.open("a+b", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":  # a crash left it incomplete
                lines = b"\n" + lines
        file.write(lines)


def files_of(folder: Path) -> list[list[Any]]:
    """Return names, sizes and times of a folder's files, which change with their content."""
    if not folder.is_dir():
        return []
    found = [(path.name, path.stat()) for path in sorted(folder.iterdir()) if path.is_file()]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in found]
