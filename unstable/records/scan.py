"""Fast passes over a run's largest files, which hold far more than a table or a report needs."""

import contextlib
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

from unstable.records.folder import GameFile, RunFolder
from unstable.records.reading import DamagedError, Skipped, parse_record, placed_records
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
    for offset, head in placed_records(file.path, RecordedGame, skipped, parse=_head):
        yield GameLocation(file, offset, head.spec.game_id), head


def _head(line: bytes, kind: type[RecordedGame], place: str) -> RecordedGame:
    head, found, _ = line.partition(_TURNS)
    with contextlib.suppress(DamagedError):
        if found:
            return parse_record(head + _TURNS + b"]}", kind, place)
    game = parse_record(line, kind, place)  # fields in another order
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

    def parse(line: bytes, kind: type[SampleAdvantage], place: str) -> SampleAdvantage | None:
        if games is not None:
            named = _GAME.search(line)  # faster than parsing
            if named is None or int(named[1]) not in games:
                return None
        return parse_record(line, kind, place)

    found = {}
    left_out = Skipped() if skipped is None else skipped
    for update, path in folder.sample_files():
        for _, record in placed_records(path, SampleAdvantage, left_out, parse=parse):
            found[record.game, record.turn] = TrainedAdvantage(update, record.advantage)
    return found
