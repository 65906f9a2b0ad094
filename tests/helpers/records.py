"""Records as plain values, as a reader of the files knows them."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from unstable.records.games import game_body, game_line
from unstable.records.reading import parse_record
from unstable.types import GameResult, RecordedGame, Trajectory

Record = dict[str, Any]


def game_record(
    result: GameResult, trajectories: Sequence[Trajectory], version: int, actor: int | None
) -> dict[str, Any]:
    """A game's line without its format."""
    record: dict[str, Any] = json.loads(game_line(game_body(result, trajectories), version, actor))
    del record["format"]
    return record


def recorded(result: GameResult, version: int) -> RecordedGame:
    """A game as a reader of the files has it."""
    return parse_record(game_line(game_body(result), version, None), RecordedGame, "a line")


def as_played(record: GameResult) -> GameResult:
    """A recorded game without what only a file says."""
    names = GameResult.__struct_fields__
    made = GameResult(**{name: getattr(record, name) for name in names})
    turns = [replace(turn, rewards=None) for turn in record.turns]
    return replace(made, turns=turns, branches=[])


_SPEC = {"member": 0, "opening": 0, "teams": [], "ensemble": []}
_GAME = {"forfeit": None, "raised": False, "stakes": None, "fork": 0}
_TURN = {"rewards": None, "sampled": None, "votes": None, "formatted": True}


def lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file; of games with fields of their specs and answers beside the others'."""
    return [flat(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def flat(record: dict[str, Any]) -> dict[str, Any]:
    """Merge the spec's and answers' fields into a game's record; other records stay unchanged."""
    if "spec" not in record:
        return record
    spec = {name: value for name, value in record["spec"].items() if name != "branches"}
    players = [seat["player"] for seat in spec["seats"]]
    turns = [{**_TURN, **turn, **turn["answer"]} for turn in record["turns"]]
    return {**_SPEC, **_GAME, **spec, **record, "players": players, "turns": turns}
