"""Sinks of the run folder's own files."""

from collections.abc import Sequence

from unstable.records.files import LineFile, json_line, write_whole
from unstable.records.folder import RunFolder
from unstable.records.shapes import Ratings
from unstable.tracking.sinks.base import Row, Sink
from unstable.types import Purpose


class GameFiles(Sink):
    """Sink of `games/<purpose>-<version>.jsonl`, one line per game."""

    name = "the games file"

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._open: dict[Purpose, tuple[int, LineFile]] = {}
        folder.games("train", 0).parent.mkdir(parents=True, exist_ok=True)

    def game_lines(self, version: int, purpose: Purpose, lines: Sequence[bytes]) -> None:
        opened = self._open.get(purpose)
        if opened is None or opened[0] != version:
            if opened is not None:
                opened[1].close()
            opened = self._open[purpose] = (version, LineFile(self._folder.games(purpose, version)))
        opened[1].append(b"".join(lines))

    def close(self) -> None:
        for _, file in self._open.values():
            file.close()


class SampleFiles(Sink):
    """Sink of `train/<update>.jsonl`, one line per sample."""

    name = "the samples file"

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        folder.train.mkdir(parents=True, exist_ok=True)

    def sample_lines(self, update: int, lines: bytes) -> None:
        write_whole(self._folder.samples(update), lines)


class RatingsFile(Sink):
    """Sink of `ratings.json`, the newest table."""

    name = "the ratings file"

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.ratings

    def ratings(self, record: Ratings) -> None:
        write_whole(self._path, json_line(record))


class MetricsFile(Sink):
    """Sink of `metrics.jsonl`, one line per row."""

    name = "the metrics file"

    def __init__(self, folder: RunFolder) -> None:
        self._file = LineFile(folder.metrics)

    def row(self, row: Row) -> None:
        self._file.write(row)

    def close(self) -> None:
        self._file.close()
