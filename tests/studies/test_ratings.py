"""Ratings rebuilt from a run's files: bitwise equal TrueSkill, and the fit of several runs."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.helpers.builders import game
from tests.helpers.loop import make_context, train_to_end
from tests.helpers.mistakes import refused
from tests.helpers.records import flat, game_record
from unstable.records.files import write_lines
from unstable.records.folder import RunFolder
from unstable.records.reading import Skipped
from unstable.studies.ratings import ratings
from unstable.studies.rebuilding import rebuild

POOL = {
    "opponents": {
        "draw": {"self": 0.3, "past": 0.5, "fixed": 0.2},
        "past": "thompson",
        "pool_size": 8,
    },
    "eval": {"every": 2, "games": 6, "temperature": [1.0, 0.0], "opponents": ["random", "base"]},
}

GRPO = {"algorithm": {"name": "grpo"}, "batch_size": 16, "micro_batch_size": 8}


def trained(tiny_folder: Path, place: Path, seed: int, mode: str, **changes: object) -> RunFolder:
    own = POOL | {"seed": seed, "loop": {"mode": mode, "steps": 5}} | changes
    return train_to_end(make_context(tiny_folder, place, 2, **own))


@pytest.fixture(scope="module")
def runs(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunFolder]:
    place = tmp_path_factory.mktemp("runs")
    return {
        mode: trained(tiny_folder, place / mode, seed, mode)
        for seed, mode in enumerate(("sync", "async"))
    }


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_rebuilt_ratings_equal_saved_ones(runs: dict[str, RunFolder], mode: str) -> None:
    """With past versions, concurrent evaluations and an unrated temperature."""
    found = rebuild(runs[mode], Skipped())
    assert found.difference == 0.0
    saved = json.loads(runs[mode].ratings.read_text())["players"]
    assert {row["player"] for row in saved} >= {"main@5", "main@0", "random", "base"}
    assert [each.mu for each in found.ratings] == [row["mu"] for row in saved]


def test_branching_games_are_rated_once(tiny_folder: Path, tmp_path: Path) -> None:
    folder = trained(
        tiny_folder,
        tmp_path / "run",
        3,
        "sync",
        learner=GRPO,
        groups={"size": 4, "by": "branch"},
        openings={"share": 0.5, "moves": [1, 2], "by": "random"},
    )
    lines = folder.games("train", 0).read_text().splitlines()
    assert any(json.loads(line)["spec"].get("branches") for line in lines)
    assert rebuild(folder, Skipped()).difference == 0.0


def test_rebuilt_ratings_follow_rollbacks(tiny_folder: Path, tmp_path: Path) -> None:
    """All groups tie if every answer forfeits: an alarm from the third update on."""
    guard = {"action": ["rollback"], "patience": 1, "thresholds": {"tied": 0.5}}
    groups = {"learner": GRPO, "groups": {"size": 4}, "guard": guard}
    folder = trained(tiny_folder, tmp_path / "run", 4, "sync", **groups)
    rows = [json.loads(line) for line in folder.metrics.read_text().splitlines()]
    assert any(row.get("guard/rolled_back_to") is not None for row in rows)
    assert rebuild(folder, Skipped()).difference == 0.0


def test_versions_by_run(runs: dict[str, RunFolder], capsys: pytest.CaptureFixture[str]) -> None:
    roots = [folder.root for folder in runs.values()]
    found = ratings(roots, 1.0, as_json=True)
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(found))
    names = {row["player"] for row in found["players"]}
    assert {"sync/main@5", "async/main@5", "random", "base"} <= names and "main@5" not in names
    assert found["reference"] == "random" and list(found["draws"]) == ["TicTacToe-v0"]
    assert [row["difference"] for row in found["rebuilt"]] == [0.0, 0.0]
    one = ratings(roots[:1], 1.0)
    shown = capsys.readouterr().out
    assert "expected" in shown
    assert "ratings.json: identical to the rebuilt ratings" in shown and "main@5" in shown
    assert one["games"] + ratings(roots[1:], 1.0)["games"] == found["games"]


def test_sampled_counts_are_reported_with_expected_counts(runs: dict[str, RunFolder]) -> None:
    met = rebuild(runs["sync"], Skipped()).met
    assert {*met} <= {f"main@{version}" for version in range(5)} and len(met) > 2
    assert sum(drawn for drawn, _ in met.values()) == pytest.approx(sum(e for _, e in met.values()))
    played = Counter[str]()
    for file in runs["sync"].game_files():
        for line in runs["sync"].games(file.purpose, file.version).read_text().splitlines():
            names = {seat["player"] for seat in flat(json.loads(line))["seats"]}
            played.update(names - {f"main@{file.version}"} if file.purpose == "train" else ())
    assert all(drawn >= played[player] for player, (drawn, _) in met.items())
    assert {name for name in played if name.startswith("main@")} <= {*met}


def test_json_of_a_run_with_other_players_is_valid(
    runs: dict[str, RunFolder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = RunFolder(tmp_path / "run")
    shutil.copytree(runs["sync"].root, copy.root)
    for path in copy.root.glob("games/train-00000[1-9].jsonl"):
        path.unlink()
    ratings([copy.root], 1.0, as_json=True)
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["rebuilt"][0]["difference"] == "other players"


def test_missing_games_change_rebuilt_ratings(runs: dict[str, RunFolder], tmp_path: Path) -> None:
    copy = RunFolder(tmp_path / "run")
    shutil.copytree(runs["sync"].root, copy.root)
    copy.games("train", 1).unlink()
    difference = rebuild(copy, Skipped()).difference
    assert difference is not None and difference > 0


def test_forfeits_are_weighted(runs: dict[str, RunFolder], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    (folder.root / "games").mkdir(parents=True)
    folder.config.write_text(runs["sync"].config.read_text())
    lost = [game(("main@0", "random"), forfeit=0, game_id=n, purpose="train") for n in range(4)]
    won = [game(("main@0", "random"), game_id=4 + n, purpose="train") for n in range(4)]
    alone = [game(("main@0", "main@0"), forfeit=0, game_id=9, purpose="train")]  # unrated
    write_lines(folder.games("train", 0), [game_record(each, [], 0, 0) for each in [*lost, *won]])
    even, without = (ratings([folder.root], weight) for weight in (1.0, 0.0))
    points = [
        {row["player"]: row["points"] for row in each["players"]}["main@0"]
        for each in (even, without)
    ]
    assert points[0] == pytest.approx(0.0, abs=1e-6) and points[1] > 100
    write_lines(folder.games("train", 1), [game_record(each, [], 0, 0) for each in alone])
    row = {row["player"]: row for row in ratings([folder.root], 1.0)["players"]}["main@0"]
    assert (row["wins"], row["losses"], row["forfeits"]) == (4, 4, 4)
    refused("--forfeits = 2: must be from 0", ratings, [folder.root], 2.0)


def test_folder_without_games_is_rejected(runs: dict[str, RunFolder], tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    refused("contains no config.yaml", ratings, [folder.root], 1.0)
    folder.config.write_text(runs["sync"].config.read_text())
    refused("no recorded game has two different players", ratings, [folder.root], 1.0)
