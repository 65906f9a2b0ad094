"""Rows of `metrics.jsonl`, their figures by what they are of: an evaluation, a rating, ..."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from unstable.types.metrics import MetricKey

Row = dict[str, Any]
K = TypeVar("K", bound=MetricKey)


class Measured(NamedTuple, Generic[K]):
    """A key's figures in one row: Measured(12, EvalKey("Nim-v0", "random", ...), {"score": 0.8})"""

    version: int
    key: K
    figures: dict[str, Any]


def measured(
    kind: type[K], rows: Iterable[Mapping[str, Any]], figure: str
) -> Iterator[Measured[K]]:
    """Whatever of a kind rows have, oldest first, as far as `figure` has a value there."""
    for row in rows:
        found: dict[K, dict[str, Any]] = {}
        for name, value in row.items():
            if (parsed := kind.parse(name)) is not None:
                found.setdefault(parsed[0], {})[parsed[1]] = value
        for key, figures in found.items():
            if isinstance(figures.get(figure), float | int):
                yield Measured(row["version"], key, figures)


def by_key(found: Iterable[Measured[K]]) -> dict[K, list[Measured[K]]]:
    """The same by key, in the order in which keys first come."""
    series: dict[K, list[Measured[K]]] = {}
    for each in found:
        series.setdefault(each.key, []).append(each)
    return series
