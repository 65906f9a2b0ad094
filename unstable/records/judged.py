"""Scores that a judge gave recorded games afterwards: `judged/NAME.jsonl` of a run."""

from collections import defaultdict
from pathlib import Path
from statistics import fmean

from unstable.records.reading import Skipped, read_records
from unstable.records.shapes import JUDGED

Judged = tuple[int, int]
"""Whose score it is: a game's id and a seat."""


def read_scores(path: Path, term: str, skipped: Skipped) -> dict[Judged, float]:
    """A term's values before its weight, by game and seat: the mean over what was judged of them.

    A line holds game, seat, turn (null: the seat's whole game) and terms, each raw and weighted.
    """
    found: dict[Judged, list[float]] = defaultdict(list)
    for record in read_records(path, JUDGED, skipped):
        if term in record["terms"]:
            found[record["game"], record["seat"]].append(record["terms"][term]["raw"])
    return {judged: fmean(values) for judged, values in found.items()}
