"""Quick passes over a run's largest files, which hold far more than a table or a report needs."""

import json
import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from unstable.config import ConfigError, check_format
from unstable.records.files import read_lines, whole_lines
from unstable.records.folder import GameFile, RunFolder
from unstable.records.games import Record

_TURNS = b',"turns":['  # no text of a record holds this: its quotation marks are escaped
_GAME = re.compile(rb'"game":(\d+)[,}]')


class Place(NamedTuple):
    """Where a recorded game is: its file, the offset of its line in bytes, and its number."""

    file: GameFile
    offset: int
    game: int


class Advantage(NamedTuple):
    """What a turn was worth as it was trained on, and the update that did."""

    update: int
    value: float


def scan_games(folder: RunFolder) -> Iterator[tuple[Place, Record]]:
    """Each recorded game without its turns, which are not parsed: a tenth of the time.

    Raises `ConfigError` for a line that is no recorded game.
    """
    for file in folder.game_files():
        offset = 0
        with file.path.open("rb") as lines:
            for line in whole_lines(lines):
                head, _, _ = line.partition(_TURNS)
                if line.strip():
                    record = _parsed(head + b"}", file.path, offset)
                    yield Place(file, offset, record.get("game", -1)), record
                offset += len(line)


def read_game_at(place: Place) -> Record:
    """The whole record of the game there."""
    with place.file.path.open("rb") as lines:
        lines.seek(place.offset)
        return _parsed(lines.readline(), place.file.path, place.offset)


def _parsed(line: bytes, path: Path, offset: int) -> Record:
    where = f"{path}, byte {offset}"
    try:
        record = json.loads(line)
        check_format(record, where)
        if not {"players", "outcomes"} <= record.keys():
            raise ValueError("a line of something else")
        return record
    except (ValueError, AttributeError):
        raise ConfigError(f"{where}: not a recorded game; give a folder of a run") from None


def read_advantages(
    folder: RunFolder, games: Collection[int] | None = None
) -> dict[tuple[int, int], Advantage]:
    """By game and turn, what was trained on; of the given games alone, or of all."""
    found = {}
    for update, path in folder.sample_files():
        for record in _samples(path, games):
            found[record["game"], record["turn"]] = Advantage(update, record["advantage"])
    return found


def _samples(path: Path, games: Collection[int] | None) -> Iterator[Record]:
    if games is None:
        yield from (record for _, record in read_lines(path, whole=True))
        return
    with path.open("rb") as lines:
        for line in whole_lines(lines):
            named = _GAME.search(line)
            if named is not None and int(named[1]) in games:
                yield json.loads(line)
