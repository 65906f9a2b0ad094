"""Fast passes over a run's largest files, which hold far more than a table or a report needs."""

import contextlib
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from unstable.records.files import whole_lines
from unstable.records.folder import GameFile, RunFolder
from unstable.records.reading import DamagedError, Skipped, parse_record, read_records
from unstable.records.shapes import SampleAdvantage
from unstable.types import RecordedGame

_TURNS = b',"turns":['  # texts cannot match: their quotes are escaped
_GAME = re.compile(rb'"game":\s*(\d+)[,}\s]')


class GameLocation(NamedTuple):
    """Position of a recorded game: its file, the offset of its line in bytes, and its id."""

    file: GameFile
    offset: int
    game: int


class TrainedAdvantage(NamedTuple):
    """Advantage that a turn was trained with, and the update that did so."""

    update: int
    value: float


def scan_games(
    folder: RunFolder, skipped: Skipped | None = None
) -> Iterator[tuple[GameLocation, RecordedGame]]:
    """Yield each recorded game without its turns, which are not parsed: a tenth of the time.

    Invalid lines are left out. Raises `ConfigError` for a game of another format.
    """
    left_out = Skipped() if skipped is None else skipped
    for file in folder.game_files():
        yield from scan_file(file, left_out)


def scan_file(file: GameFile, skipped: Skipped) -> Iterator[tuple[GameLocation, RecordedGame]]:
    """Yield each recorded game of one file without its turns; see `scan_games`."""
    offset = 0
    with file.path.open("rb") as lines:
        for number, line in enumerate(whole_lines(lines), start=1):
            try:
                if line.strip():
                    head = _head(line, f"{file.path}:{number}")
                    yield GameLocation(file, offset, head.spec.game_id), head
            except DamagedError as error:
                skipped.add(file.path, f"line {number}", error)
            offset += len(line)


def _head(line: bytes, place: str) -> RecordedGame:
    head, found, _ = line.partition(_TURNS)
    with contextlib.suppress(DamagedError):
        if found:
            return parse_record(head + _TURNS + b"]}", RecordedGame, place)
    game = parse_record(line, RecordedGame, place)  # fields in another order
    game.turns = []
    return game


def read_game_at(place: GameLocation) -> RecordedGame:
    """Return the whole record of the game at a location.

    Raises `DamagedError` if it is invalid, and `ConfigError` if it has another format.
    """
    with place.file.path.open("rb") as lines:
        lines.seek(place.offset)
        where = f"{place.file.path}, byte {place.offset}"
        return parse_record(lines.readline(), RecordedGame, where)


def read_advantages(
    folder: RunFolder, games: Collection[int] | None = None, skipped: Skipped | None = None
) -> dict[tuple[int, int], TrainedAdvantage]:
    """Return advantages by game and turn, of the given games or of all."""
    found = {}
    left_out = Skipped() if skipped is None else skipped
    for update, path in folder.sample_files():
        for record in _samples(path, games, left_out):
            found[record.game, record.turn] = TrainedAdvantage(update, record.advantage)
    return found


def _samples(
    path: Path, games: Collection[int] | None, skipped: Skipped
) -> Iterator[SampleAdvantage]:
    """Yield a file's samples, of all games or of some, whose ids are found before parsing."""
    if games is None:
        yield from read_records(path, SampleAdvantage, skipped)
        return
    with path.open("rb") as lines:
        for number, line in enumerate(whole_lines(lines), start=1):
            named = _GAME.search(line)
            if named is not None and int(named[1]) in games:
                try:
                    yield parse_record(line, SampleAdvantage, f"{path}:{number}")
                except DamagedError as error:
                    skipped.add(path, f"line {number}", error)
