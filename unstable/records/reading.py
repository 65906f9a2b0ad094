"""Checked reading of a run's files; damaged records are left out and counted.

A record of another format is not damaged: it raises `ConfigError`.
"""

import contextlib
import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from msgspec import MsgspecError, ValidationError, convert
from msgspec import json as json_codec

from unstable.config import FORMAT, ConfigError, check_format, shown
from unstable.records.shapes import row_problem
from unstable.types import PlayerId
from unstable.types.metrics import MetricKey

WHOLE = "time/total"
"""Metric in every row except those of evaluations that were concurrent with training."""
_TAIL_BYTES = 2**22
_DECODERS: dict[type, "json_codec.Decoder[Any]"] = {}
_OWN_FORMAT = b'{"format":%d,' % FORMAT
Row = dict[str, Any]
T = TypeVar("T")
K = TypeVar("K", bound=MetricKey)


class DamagedError(ValueError):
    """Record that cannot be read; the text gives the reason in a few words."""


class Skipped:
    """Counts of damaged records by file, and the error of the first one in each."""

    def __init__(self) -> None:
        self._counts: Counter[Path] = Counter()
        self._first: dict[Path, str] = {}

    def add(self, path: Path, where: str, error: DamagedError) -> None:
        """Count a damaged record; `where` is its place in the file, such as "line 3"."""
        self._counts[path] += 1
        self._first.setdefault(path, f"{where}: {error}")

    def __len__(self) -> int:
        """Return the number of damaged records."""
        return self._counts.total()

    @property
    def first(self) -> str:
        """Place and error of the first damaged record; "" if there is none."""
        return next((f"{path}, {why}" for path, why in self._first.items()), "")

    @property
    def line(self) -> str:
        """Summary of all damaged records in a line; "" if nothing was left out."""
        parts = [
            f"{count} in {path.parent.name}/{path.name} ({self._first[path]})"
            for path, count in self._counts.items()
        ]
        more = f", and more in {len(parts) - 3} other files" if len(parts) > 3 else ""
        return f"damaged records skipped: {', '.join(parts[:3])}{more}" if parts else ""


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


_DECODER = json.JSONDecoder(parse_constant=_refuse)


def parse_record(content: bytes, kind: type[T], place: str) -> T:
    """Return the record in a line or a document; `kind` is `dict` for rows of metrics.

    Raises `DamagedError` if it is invalid, and `ConfigError` if it has another format.
    """
    if content.startswith(_OWN_FORMAT):
        with contextlib.suppress(MsgspecError, ValueError):
            record = _decoder(kind).decode(content)
            if isinstance(record, dict):
                del record["format"]
            if problem_of(record) is None:
                return record
    try:  # for a readable error, or a lone surrogate
        values = _DECODER.decode(content.decode("utf-8"))
    except (ValueError, RecursionError):
        raise DamagedError("not JSON") from None
    if not isinstance(values, dict):
        raise DamagedError("not a JSON object")
    found = values.get("format", FORMAT)
    if type(found) is not int:
        raise DamagedError(f"format = {shown(found)}: not an integer")
    check_format(values, place)
    return as_record(values, kind)


def as_record(values: object, kind: type[T]) -> T:
    """Return a record of plain values; raises `DamagedError`, which names the field, if invalid."""
    try:
        record = convert(values, kind, dec_hook=_hook)
    except (ValidationError, UnicodeError, AttributeError, RecursionError) as error:
        text, _, path = str(error).partition(" - at `$")
        place = path.rstrip("`").lstrip(".").replace("[", ".").replace("]", "").lstrip(".")
        raise DamagedError(f"{place}: {text[0].lower()}{text[1:]}" if place else text) from None
    if problem := problem_of(record):
        raise DamagedError(problem)
    return record


def problem_of(record: Any) -> str | None:
    """Describe the first field of a record that contradicts others; None if there is none."""
    problem: str | None = row_problem(record) if type(record) is dict else record.problem()
    return problem


def _hook(kind: type, value: Any) -> Any:
    if kind is PlayerId and isinstance(value, str):
        return PlayerId.parse(value)
    raise ValueError(f"Expected `str`, got {shown(value)}")


def _decoder(kind: type[T]) -> "json_codec.Decoder[T]":
    if kind not in _DECODERS:
        _DECODERS[kind] = json_codec.Decoder(kind, dec_hook=_hook)
    return _DECODERS[kind]


def read_records(path: Path, kind: type[T], skipped: Skipped, start: int = 0) -> Iterator[T]:
    """Yield the records of a run's JSONL file from byte `start` on; nothing if it is missing.

    A line without an end is left out: it is being written, or the run died in it. Lines are counted
    from `start` on.
    """
    for _, record in placed_records(path, kind, skipped, start):
        yield record


def read_list(path: Path, kind: type[T]) -> list[T]:
    """Return the records of a JSONL file; raises `ConfigError` for a damaged one."""
    skipped = Skipped()
    found = [*read_records(path, kind, skipped)]
    if skipped:
        raise ConfigError(f"{skipped.first}; fix or delete that line")
    return found


def placed_records(
    path: Path,
    kind: type[T],
    skipped: Skipped,
    start: int = 0,
    end: int | None = None,
    parse: Callable[[bytes, type[T], str], T | None] = parse_record,
) -> Iterator[tuple[int, T]]:
    """Yield records as `read_records` does, each with its byte offset, if that is below `end`.

    Lines of which `parse` returns None are left out.
    """
    if not path.is_file():
        return
    place = start
    with path.open("rb") as lines:
        lines.seek(start)
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n") or (end is not None and place >= end):
                return
            try:
                if line.strip() and (record := parse(line, kind, f"{path}:{number}")) is not None:
                    yield place, record
            except DamagedError as error:
                skipped.add(path, f"line {number}", error)
            place += len(line)


def read_document(path: Path, kind: type[T], skipped: Skipped) -> T | None:
    """Return the record in a file; None if the file is missing or damaged."""
    if not path.is_file():
        return None
    try:
        return parse_record(path.read_bytes(), kind, str(path))
    except DamagedError as error:
        skipped.add(path, "document", error)
        return None


def read_rows(path: Path, skipped: Skipped | None = None) -> list[dict[str, Any]]:
    """Return the rows of a `metrics.jsonl`, oldest first; [] if the file is missing."""
    left_out = Skipped() if skipped is None else skipped
    return joined(read_records(path, dict, left_out))


def joined(rows: Iterable[Row]) -> list[Row]:
    """Return rows in order, with an evaluation's own row merged into its version's.

    An evaluation that was concurrent with training wrote its row later, without a `time/total`. It
    is left out if its version's row is not among these.
    """
    found: list[Row] = []
    for row in rows:
        at = len(found) - 1
        while at > 0 and found[at]["version"] > row["version"]:
            at -= 1
        if row.get(WHOLE) is None and found and _is_of(found[at], row):
            found[at] = {**found[at], **row, "time": found[at].get("time")}
        elif not (found and row["version"] < found[-1]["version"]):
            found.append(row)
    return found


def _is_of(whole: Row, part: Row) -> bool:
    return whole["version"] == part["version"] and whole.get(WHOLE) is not None


def read_last_rows(path: Path, count: int, most_bytes: int = _TAIL_BYTES) -> list[dict[str, Any]]:
    """Return the last `count` rows without damaged ones, if they are in the last `most_bytes`."""
    if not path.is_file():
        return []
    start = max(path.stat().st_size - most_bytes, 0)
    if start:
        with path.open("rb") as file:
            file.seek(start)
            start += len(file.readline())  # the first line may be incomplete
    return joined(deque(read_records(path, dict, Skipped(), start), maxlen=count))


class Measured(NamedTuple, Generic[K]):
    """Key's figures in one row: Measured(12, EvalKey("Nim-v0", "random", ...), {"score": 0.8})"""

    version: int
    key: K
    figures: dict[str, Any]


def measured(
    kind: type[K], rows: Iterable[Mapping[str, Any]], figure: str
) -> Iterator[Measured[K]]:
    """Yield the figures of a kind of key in rows, oldest first, if `figure` has a value there."""
    for row in rows:
        found: dict[K, dict[str, Any]] = {}
        for name, value in row.items():
            if (parsed := kind.parse(name)) is not None:
                found.setdefault(parsed[0], {})[parsed[1]] = value
        for key, figures in found.items():
            if isinstance(figures.get(figure), float | int):
                yield Measured(row["version"], key, figures)


def by_key(found: Iterable[Measured[K]]) -> dict[K, list[Measured[K]]]:
    """Return figures grouped by key, in the order in which keys first occur."""
    series: dict[K, list[Measured[K]]] = {}
    for each in found:
        series.setdefault(each.key, []).append(each)
    return series
