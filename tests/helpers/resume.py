"""Results of a run as values to compare: weights, rows, training data."""

from typing import Any

from tests.helpers.loop import lines
from unstable.models.adapters import read_adapter
from unstable.records.folder import RunFolder
from unstable.records.reading import read_rows

TIMED = ("time", "time/", "collect/games_per", "collect/turns_per", "collect/seconds", "device/")
SLOWLY = ("collect/engine", "learn/tokens_per_second")  # depend on the machine or on the actor


def rows(folder: RunFolder) -> list[dict[str, Any]]:
    """Return rows without metrics that depend on clocks."""
    return [
        {
            name: value
            for name, value in row.items()
            if not name.startswith(TIMED + SLOWLY) and not name.endswith("/seconds")
        }
        for row in read_rows(folder.metrics)
    ]


def weights(folder: RunFolder, version: int) -> bytes:
    return read_adapter(folder.checkpoint(version), "any").weights


def trained_on(folder: RunFolder) -> list[tuple[int, int]]:
    files = sorted(folder.train.glob("*.jsonl"))
    return [(sample["game"], sample["turn"]) for path in files for sample in lines(path)]
