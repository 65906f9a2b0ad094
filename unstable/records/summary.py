"""Results of a run as one value, which everything that shows a run reads."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import TypeVar

from unstable.records.folder import RunFolder
from unstable.records.reading import (
    Measured,
    Row,
    Skipped,
    by_key,
    joined,
    measured,
    read_document,
    read_rows,
)
from unstable.records.shapes import Ratings
from unstable.types import PlayerId, Rating
from unstable.types.metrics import EvalKey, ExploitKey, MetricKey, VersusKey, WorstKey

RESULTS = ("win", "draw", "loss", "forfeit")
_TOTALS = (
    *("collect/games", "collect/trained_turns", "collect/forfeits", "collect/failures"),
    *("time/total", "time/starting"),
)
_GUARD = ("guard/alarm/", "guard/action/")
K = TypeVar("K", bound=MetricKey)
A = TypeVar("A")
B = TypeVar("B")
Series = Mapping[K, Sequence[Measured[K]]]


@dataclass(frozen=True, slots=True)
class RunSummary:
    """Results of a run.

    RunSummary.of(rows).evaluations[EvalKey("Nim-v0", "random", "greedy")][-1].figures["score"]

    A running run gets a new value after each row (`plus`), so that threads may read the last one.
    """

    rows: Sequence[Row] = ()
    totals: Counter[str] = field(default_factory=Counter)
    """Sums by metric, and numbers of training games, wins and losses against each opponent."""
    evaluations: Series[EvalKey] = field(default_factory=dict)
    exploitability: Series[ExploitKey] = field(default_factory=dict)
    worst: Mapping[WorstKey, Measured[WorstKey]] = field(default_factory=dict)
    guard: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    """Alarms and actions of the guard by metric, each with its versions and figures."""
    ratings: Sequence[Rating] = ()

    @classmethod
    def of(cls, rows: Sequence[Row], ratings: Sequence[Rating] = ()) -> "RunSummary":
        """Return the summary of rows, oldest first."""
        totals = Counter({name: sum(row.get(name) or 0 for row in rows) for name in _TOTALS})
        for _, key, figures in measured(VersusKey, rows, "games"):
            games = figures["games"]
            totals.update({key.name(name): games * (figures.get(name) or 0) for name in RESULTS})
            totals[key.name("games")] += games
        guard: dict[str, list[tuple[int, float]]] = {}
        for row in rows:
            for name, value in row.items():
                if name.startswith(_GUARD) and value is not None:
                    guard.setdefault(name, []).append((row["version"], value))
        return cls(
            rows,
            totals,
            evaluations=by_key(measured(EvalKey, rows, "score")),
            exploitability=by_key(measured(ExploitKey, rows, "low")),
            worst={each.key: each for each in measured(WorstKey, rows, "score")},
            guard=guard,
            ratings=ratings,
        )

    @classmethod
    def read(cls, folder: RunFolder, skipped: Skipped) -> "RunSummary":
        """Return the summary of a run's files."""
        found = read_document(folder.ratings, Ratings, skipped)
        figures = [each.name for each in fields(Rating) if each.name != "player"]
        ratings = [
            Rating(
                player=PlayerId.parse(each.player),
                **{name: getattr(each, name) for name in figures},
            )
            for each in (found.players if found else [])
        ]
        return cls.of(read_rows(folder.metrics, skipped), ratings)

    def plus(self, row: Row, most_rows: int) -> "RunSummary":
        """Return the summary with a row added; only the newest `most_rows` rows are kept."""
        new = RunSummary.of([row])
        totals = Counter(self.totals)
        totals.update(new.totals)  # the sum of two counters would drop zeros
        return RunSummary(
            rows=joined((*self.rows, row))[-most_rows:],
            totals=totals,
            evaluations=_extended(self.evaluations, new.evaluations),
            exploitability=_extended(self.exploitability, new.exploitability),
            worst={**self.worst, **new.worst},
            guard=_extended(self.guard, new.guard),
            ratings=self.ratings,
        )

    @property
    def version(self) -> int:
        """Version of the last row; 0 without rows."""
        return self.rows[-1]["version"] if self.rows else 0

    @property
    def opponents(self) -> list[VersusKey]:
        """Opponents of trained seats in training, and sums over several of them."""
        parsed = filter(None, map(VersusKey.parse, self.totals))
        return [key for key, figure in parsed if figure == "games"]

    @property
    def newest(self) -> list[Measured[EvalKey]]:
        """All evaluations, newest version first."""
        return sorted(chain.from_iterable(self.evaluations.values()), key=lambda e: -e.version)

    @property
    def latest(self) -> list[Measured[EvalKey]]:
        """Last evaluation against each opponent that has a gain, or else the last one."""
        return [
            next((e for e in reversed(found) if e.figures.get("gain") is not None), found[-1])
            for found in self.evaluations.values()
        ]


def _extended(old: Mapping[A, Sequence[B]], new: Mapping[A, Sequence[B]]) -> dict[A, Sequence[B]]:
    return {**old, **{key: (*old.get(key, ()), *found) for key, found in new.items()}}
