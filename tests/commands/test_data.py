"""A run read as frames holds what its files hold, in documented columns, and nothing unasked."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import unstable
from tests.helpers.loop import make_context, train_to_end
from tests.helpers.mistakes import refused
from tests.helpers.tracking import lines
from unstable.records.data import GAME_COLUMNS, LIBRARIES, TURN_COLUMNS, TURN_KEYS, Library
from unstable.records.files import read_lines, write_lines
from unstable.records.folder import RunFolder
from unstable.records.reading import Skipped, parse_record, read_rows
from unstable.records.scan import read_advantages, read_game_at, scan_games
from unstable.types import RecordedGame

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def run(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A real run of three updates, with evaluations."""
    return train_to_end(make_context(tiny_folder, tmp_path_factory.mktemp("run") / "run"))


def listed(frame: Any, column: str) -> list[Any]:
    return frame[column].to_list()


@pytest.mark.parametrize("library", LIBRARIES)
def test_frames_equal_the_files(run: RunFolder, library: Library) -> None:
    data = unstable.read(run, library)
    assert type(data.metrics).__module__.partition(".")[0] == library
    rows = read_rows(run.metrics)
    assert listed(data.metrics, "version") == [row["version"] for row in rows]
    games = [(file, game) for file in run.game_files() for game in lines(file.path)]
    assert len(data.games) == len(games) > 0
    assert list(data.games.columns) == list(GAME_COLUMNS)
    assert listed(data.games, "reason") == [game["reason"] for _, game in games]
    assert [list(o) for o in listed(data.games, "outcomes")] == [g["outcomes"] for _, g in games]
    turns = [turn for _, game in games for turn in game["turns"]]
    assert listed(data.turns, "text") == [turn["text"] for turn in turns]
    for got, logprobs, turn in zip(
        *(listed(data.turns, column) for column in ("prompt_ids", "logprobs")), turns, strict=True
    ):
        sampled = turn["sampled"] or {"prompt_ids": [], "segments": [{"logprobs": []}]}
        assert list(got) == sampled["prompt_ids"]
        assert [list(logprobs)] == [segment["logprobs"] for segment in sampled["segments"]]


def test_turns_have_their_trained_advantages(run: RunFolder) -> None:
    turns = unstable.read(run.root, "polars").turns
    trained = turns.filter(turns["advantage"].is_not_null())
    samples = [sample for _, path in run.sample_files() for sample in lines(path)]
    assert len(trained) == len(samples) > 0
    assert set(trained["purpose"]) == {"train"}
    by_place = {(s["game"], s["turn"]): s for s in samples}
    for row in trained.iter_rows(named=True):
        sample = by_place[row["game"], row["index"]]
        assert row["advantage"] == sample["advantage"]
        assert row["reward"] == pytest.approx(sample["reward"])
        assert row["outcome"] == sample["outcome"]
        assert row["reward/outcome"] == sample["rewards"]["outcome"]["raw"]


def test_files_are_read_lazily(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(run.metrics.read_bytes())
    (tmp_path / "games").mkdir()
    (tmp_path / "games/train-000000.jsonl").write_text("no JSON\n")
    data = unstable.read(tmp_path)
    assert len(data.metrics) == len(read_rows(run.metrics))
    with pytest.warns(UserWarning, match=r"skipped: 1 in games/train-000000.jsonl \(line 1: not"):
        assert len(data.games) == 0


def test_scan_returns_records_without_turns(run: RunFolder) -> None:
    scanned = list(scan_games(run))
    lines_of = [line for file in run.game_files() for line in file.path.read_bytes().splitlines()]
    for (place, head), line in zip(scanned, lines_of, strict=True):
        game = parse_record(line, RecordedGame, "a line")
        assert read_game_at(place) == game
        assert game.turns and head == replace(game, turns=[])


def test_text_cannot_end_a_scanned_record_early(tmp_path: Path, run: RunFolder) -> None:
    hostile = ',"turns":[{"observation":"'
    place, head = next(scan_games(run))
    game = read_game_at(place)
    game = replace(game, reason=hostile, spec=replace(game.spec, env=hostile))
    (tmp_path / "games").mkdir()
    write_lines(tmp_path / "games/eval-000003.jsonl", [game])
    ((_, scanned),) = scan_games(RunFolder(tmp_path))
    assert scanned.reason == scanned.spec.env == hostile and scanned.turns == []


def test_columns_are_documented() -> None:
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    frames = page.partition("# Runs as data")[2].partition("\n# ")[0]
    games, _, turns = frames.partition("## `turns`")
    named = [re.findall(r"^\| `(\S+)`", part, re.MULTILINE) for part in (games, turns)]
    behind = ["update", "advantage", "outcome", "reward", "reward/<term>"]
    assert named == [list(GAME_COLUMNS), [*TURN_KEYS, *TURN_COLUMNS, *behind]]


def test_mistakes_are_one_line_and_ids_are_int32(run: RunFolder, tmp_path: Path) -> None:
    refused("contains no metrics and no games; give a run folder", unstable.read, tmp_path)
    refused("frames = 'excel': unknown; use pandas or polars", unstable.read, run, "excel")
    ids = unstable.read(run, "pandas").turns["prompt_ids"]
    assert {each.dtype for each in ids} == {np.dtype(np.int32)}


def copied(run: RunFolder, root: Path) -> RunFolder:
    return RunFolder(shutil.copytree(run.root, root))


def test_partial_last_line_is_skipped(run: RunFolder, tmp_path: Path) -> None:
    """A full disk or a power cut leaves half a line at the end of any file."""
    folder = copied(run, tmp_path / "run")
    for path in (folder.metrics, folder.game_files()[-1].path, folder.sample_files()[-1][1]):
        line = path.read_bytes().splitlines()[-1]
        with path.open("ab") as file:
            file.write(line[: len(line) // 2])
    before, after = unstable.read(run), unstable.read(folder)
    for name in ("metrics", "games", "turns"):
        assert len(getattr(after, name)) == len(getattr(before, name)) > 0
    places = [place.offset for place, _ in scan_games(run)]
    assert [place.offset for place, _ in scan_games(folder)] == places
    assert read_advantages(folder, range(10**6)) == read_advantages(run)


def test_custom_file_with_a_partial_line_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"a": 1}\n{"a": ')
    refused(r"mine\.jsonl:2: not JSON", list, read_lines(path))


def test_line_that_is_not_a_game_is_skipped(run: RunFolder, tmp_path: Path) -> None:
    folder = copied(run, tmp_path / "run")
    with folder.game_files()[-1].path.open("ab") as file:
        file.write(b'{"format":2,"game":5}\n')
    skipped = Skipped()
    assert len(list(scan_games(folder, skipped))) == len(list(scan_games(run)))
    assert len(skipped) == 1


def test_games_with_other_spacing_and_key_order_are_read(run: RunFolder, tmp_path: Path) -> None:
    """With spaces, as `json.dumps` writes it, or with its turns first."""
    folder = copied(run, tmp_path / "run")
    for number, file in enumerate(folder.game_files()):
        rows = list(map(json.loads, file.path.read_bytes().splitlines()))
        rows = [{"turns": row.pop("turns"), **row} for row in rows]
        separators = (",", ":") if number % 2 else None
        text = "".join(json.dumps(row, separators=separators) + "\n" for row in rows)
        file.path.write_text(text)
    assert [row for _, row in scan_games(folder)] == [row for _, row in scan_games(run)]
    assert [read_game_at(place) for place, _ in scan_games(folder)] == [
        read_game_at(place) for place, _ in scan_games(run)
    ]


def test_games_of_another_format_are_rejected(run: RunFolder, tmp_path: Path) -> None:
    folder = copied(run, tmp_path / "run")
    path = folder.game_files()[-1].path
    path.write_text(path.read_text().replace('{"format":2', '{"format":1', 1))
    refused(r"jsonl:1: format = 1: .* repeat the run", list, scan_games(folder))


def test_games_without_metrics_are_read(run: RunFolder, tmp_path: Path) -> None:
    """A folder without metrics, as `unstable play` leaves it, yields its games."""
    folder = copied(run, tmp_path / "run")
    folder.metrics.unlink()
    data = unstable.read(folder)
    assert len(data.metrics) == 0 and len(data.games) == len(unstable.read(run).games)
