"""Advice if `max_turns` cuts off most games or many samples are dropped as stale."""

from pathlib import Path

from msgspec.structs import replace

from tests.helpers.builders import game
from tests.helpers.rows import every_row
from tests.helpers.tracking import make_tracker, printed, take_in
from unstable.config import parse
from unstable.tracking.advice import CAPPED_GAMES, Capped, Stale
from unstable.types import GameResult

CONFIG = parse({"games": [{"env": "Nim-v0"}, {"env": "PigDice-v0", "max_turns": 40}]})


def ended(truncated: bool, env: str = "PigDice-v0") -> GameResult:
    return replace(game(env=env), truncated=truncated)


def test_mostly_truncated_game_is_reported_once() -> None:
    capped = Capped(CONFIG)
    lines = [capped.add([ended(number != 3)]) for number in range(40)]
    said = [(number, line) for number, line in enumerate(lines) if line is not None]
    assert said == [
        (
            CAPPED_GAMES - 1,
            "games.1.max_turns = 40 has cut off 15 of the last 16 games of PigDice-v0, which "
            "reward nobody; raise it to the longest game's length (`unstable games` lists it)",
        )
    ]


@every_row("every", 2, 3)
def test_occasional_truncation_is_not_reported(every: int) -> None:
    capped = Capped(CONFIG)
    assert not any(capped.add([ended(number % every == 0)]) for number in range(200))


def test_late_truncation_counts_per_game_and_branches_count() -> None:
    capped = Capped(CONFIG)
    assert not any(capped.add([ended(False)]) for _ in range(1000))
    lines = [capped.add([ended(True)]) for _ in range(CAPPED_GAMES)]
    assert sum(line is not None for line in lines) == 1
    capped = Capped(CONFIG)
    assert not any(capped.add([ended(True)]) for _ in range(CAPPED_GAMES - 1))
    assert not any(capped.add([ended(True, "Nim-v0")]) for _ in range(CAPPED_GAMES - 1))
    branched = replace(ended(False, "Nim-v0"), branches=[ended(True, "Nim-v0")])
    line = capped.add(branched.games)
    assert line is not None and line.startswith("games.0.max_turns = 50 has cut off 15 of the last")


def test_training_and_evaluation_games_count_together(tmp_path: Path) -> None:
    tracker = make_tracker(tmp_path)
    for number in range(CAPPED_GAMES + 5):
        cut = replace(game(game_id=number), truncated=True)
        if number % 2:
            take_in(tracker, cut, [], version=0)
        else:
            tracker.add_eval_episode(cut, version=0)
    assert printed(tracker).count("games.0.max_turns = 50 has cut off 16 of the last 16") == 1


@every_row(
    "dropped, said",
    ([0, 0, 100, 100, 100, 100, 100, 400, 900], [8]),
    ([50, 50, 200, 400, 500, 550, 600], [4]),
    ([0, 0, 0, 10, 20, 40], []),
)
def test_many_stale_samples_are_reported_once(dropped: list[int], said: list[int]) -> None:
    stale = Stale(CONFIG)
    none: dict[str, float | None] = {"buffer/dropped_stale": None}
    rows: list[dict[str, float | None]] = [
        {"buffer/dropped_stale": float(each), "learn/samples": 500.0} for each in dropped
    ]
    lines = [stale.add(row) for row in (none, *rows)][1:]
    assert [number for number, line in enumerate(lines) if line is not None] == said
    for line in filter(None, lines):
        assert line.startswith("buffer.max_staleness = 4: samples dropped as too stale ")
        assert "mostly of long games" in line
