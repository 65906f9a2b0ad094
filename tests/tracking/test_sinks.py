"""Sinks: calls they receive, files that real libraries read back, and failures."""

import json
import re
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.helpers.locally import locally
from tests.helpers.mistakes import refused
from tests.helpers.pages import blocks
from tests.helpers.records import recorded
from tests.helpers.rows import every_row
from tests.helpers.tracking import (
    lines,
    make_config,
    make_game,
    make_score,
    make_tracker,
    printed,
    run_updates,
)
from unstable.config import ConfigError, RunConfig
from unstable.records.folder import RunFolder
from unstable.records.reading import read_rows
from unstable.tracking.sft import SFTTracker
from unstable.tracking.sinks import check_sinks, own_sinks
from unstable.tracking.sinks.base import Sink
from unstable.tracking.sinks.wandb import MOST_GAMES, SampleGames, sample_game
from unstable.tracking.tracker import Tracker
from unstable.types import RecordedGame

ROOT = Path(__file__).parents[2]


@pytest.mark.fault("W&B or another sink fails")
def test_failing_file_sink_is_reported_once_and_the_run_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = make_tracker(tmp_path)
    (tmp_path / "games").rmdir()
    (tmp_path / "games").write_text("a file where the folder should be")
    run_updates(tracker)
    assert printed(tracker).count("the games file cannot be written") == 1
    failed = [record for record in caplog.records if "the games file" in record.message]
    assert len(failed) == 1 and failed[0].exc_info
    assert len(read_rows(tmp_path / "metrics.jsonl")) == 3
    (tmp_path / "games").unlink()
    (tmp_path / "games").mkdir()  # writable again
    tracker.add_eval_episode(make_game(0), version=9)
    assert (tmp_path / "games" / "train-000009.jsonl").exists()


def noting(note: Callable[..., Any], *methods: str, **fields: Any) -> Any:
    """A sink whose class overrides these methods, and notes what `note` makes of each call."""

    def called(sink: Any, *arguments: Any) -> None:
        sink.seen.append(note(*arguments))

    return type("Noting", (Sink,), {**dict.fromkeys(methods, called), "seen": [], **fields})()


def track_a_run(root: Path, sinks: Sequence[Sink]) -> tuple[Tracker, RunFolder]:
    """Track a run of two updates with `sinks`."""
    tracker = run_updates(make_tracker(root, sinks=own_sinks(make_config(), sinks)))
    tracker.finish("all updates made")
    tracker.end("all updates made", None)
    tracker.close()
    tracker.close()
    return tracker, RunFolder(root)


@every_row(
    "sink, seen",
    (
        noting(lambda at, game: (at, game.spec.game_id), "game"),
        [(0, 0), (0, 100), (1, 1), (1, 101)],
    ),
    (noting(lambda update, records: (update, len(records)), "samples"), [(1, 5), (2, 5)]),
    (
        noting(lambda record: [player.player for player in record.players], "ratings"),
        [[f"main@{version}", "random"] for version in range(3)],
    ),
    (
        noting(lambda at, scores: (at, [score.score for score in scores]), "evaluation"),
        [(0, [0.5]), (1, [0.6]), (2, [0.6])],
    ),
    (
        noting(lambda row: (row["version"], row["collect/games"]), "row", url="https://some/where"),
        [(0, 0), (1, 2), (2, 2)],
    ),
    (noting(lambda *call: call, "end", "close"), [("all updates made", None), ()]),
)
def test_sink_receives_only_its_own_methods(tmp_path: Path, sink: Any, seen: list[Any]) -> None:
    tracker, folder = track_a_run(tmp_path, [sink])
    assert sink.seen == seen
    assert "cannot be written" not in printed(tracker)
    assert (f"Noting: {sink.url}" in printed(tracker)) == (sink.url is not None)
    assert len(read_rows(folder.metrics)) == 3


class Broken(Sink):
    """A sink that fails at every call."""

    error: type[BaseException] = RuntimeError

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: Counter[str] = Counter()
        for method in ("game", "samples", "ratings", "evaluation", "row", "end", "close"):
            setattr(self, method, partial(self._fail, method))

    def _fail(self, method: str, *_: Any) -> None:
        self.asked[method] += 1
        raise self.error(f"{method} is out of order")


class Leaving(Broken):
    """A sink that calls `sys.exit`."""

    error = SystemExit


def test_failing_sink_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sinks = [Broken("the first one"), Leaving("the second one")]
    tracker, folder = track_a_run(tmp_path, sinks)
    for sink in sinks:  # called again after failures
        asked = {"game": 4, "samples": 2, "ratings": 3, "evaluation": 3, "row": 3}
        assert sink.asked == asked | {"end": 1, "close": 1}
        assert printed(tracker).count(f"{sink.name} cannot be written (evaluation is out of") == 1
        [failed] = [record for record in caplog.records if sink.name in record.message]
        assert failed.exc_info
    assert printed(tracker).count("cannot be written") == 2
    assert "all updates made" in printed(tracker)
    assert [row["version"] for row in read_rows(folder.metrics)] == [0, 1, 2]
    assert [len(lines(folder.games("train", version))) for version in (0, 1)] == [2, 2]
    assert [len(lines(folder.samples(update))) for update in (1, 2)] == [5, 5]
    assert json.loads(folder.ratings.read_bytes())["players"][0]["player"] == "main@2"


class Plain(Sink):
    """A custom sink that the config names; the tracker makes it with config and folder."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self.file = folder.root / f"of {config.loop.steps} updates.txt"

    def row(self, row: Mapping[str, Any]) -> None:
        with self.file.open("a") as file:
            file.write(f"{row['version']} ")


def test_configured_sink_receives_config_and_folder(tmp_path: Path) -> None:
    config = make_config(tracking={"dashboard": "off", "sinks": f"{__name__}:Plain"})
    check_sinks(config)
    assert not [*tmp_path.iterdir()]
    run_updates(make_tracker(tmp_path, config, sinks=own_sinks(config)))
    assert (tmp_path / "of 3 updates.txt").read_text() == "0 1 2 "


def test_supervised_training_uses_custom_sinks(tmp_path: Path) -> None:
    config = make_config(tracking={"dashboard": "off", "sinks": [f"{__name__}:Plain"]})
    tracker = SFTTracker(config, RunFolder(tmp_path), epochs=1, steps=2, sinks=own_sinks(config))
    tracker.log_step({"version": 1, "sft/epoch": 1, "learn/loss": 0.5})
    tracker.close()
    assert (tmp_path / "of 3 updates.txt").read_text() == "1 "


def no_sink(config: RunConfig, folder: RunFolder) -> int:
    return 7


def leaves(config: RunConfig, folder: RunFolder) -> Sink:
    sys.exit("no key")


@every_row(
    "callback, line",
    (Broken, r"callbacks\.0 = .*Broken.*: wrong signature, .*unstable\.Sink"),
    (3, r"callbacks\.0 = '3': not callable; pass a subclass of unstable\.Sink"),
    (no_sink, r"callbacks\.0 = .*: returned a int; pass a subclass of unstable\.Sink"),
    (leaves, r"callbacks\.0 = .*: raises SystemExit no key; fix the error"),
)
def test_invalid_callback_is_a_config_error(tmp_path: Path, callback: Any, line: str) -> None:
    refused(line, lambda: make_tracker(tmp_path, sinks=own_sinks(make_config(), [callback])))


# Sample games


def eval_record(game_id: int, version: int, opponent: str, **fields: Any) -> RecordedGame:
    players = (f"main@{version}", opponent) if game_id % 2 else (opponent, f"main@{version}")
    result = make_game(game_id, players, trained=(), purpose="eval", **fields)
    return recorded(result, version)


def chosen(version: int, order: Callable[[int], Any], opponents: Sequence[str]) -> list[Any]:
    games = SampleGames()
    games.add(version - 1, eval_record(0, version - 1, "random"))  # of an unfinished evaluation
    for number in sorted(range(60), key=order):
        games.add(version, eval_record(number, version, opponents[number * len(opponents) // 60]))
    taken = games.take(version)
    assert {game.version for game in taken} == {version} and games.take(version) == []
    return [(game.game, game.opponent) for game in taken]


def test_sample_games_are_equal_for_all_versions_and_opponents() -> None:
    found = chosen(3, lambda number: number, ["random", "expert", "base"])
    assert found == chosen(4, lambda number: -number, ["random", "expert", "base"])
    assert found[:4] == [(0, "random"), (20, "expert"), (40, "base"), (1, "random")]
    assert len(found) == MOST_GAMES == 16


def test_sample_game_takes_the_evaluated_versions_view(monkeypatch: pytest.MonkeyPatch) -> None:
    record = eval_record(2, 5, "random", outcomes=(-1.0, 1.0), forfeit=0)
    shown = sample_game(5, record)
    assert (shown.seat, shown.outcome, shown.forfeit) == (1, 1.0, "random")
    assert "turn 1, seat 1 (main@5)\nThe rules.\n\n[0] [1]\nboard 1\n> Zug [1] ✓!" in shown.text
    assert shown.text.endswith("three in a row")
    monkeypatch.setenv("OPENAI_API_KEY", "three in a row")  # a secret that an endpoint returns
    record.turns[0].answer = replace(record.turns[0].answer, text="\x1b[2J")
    shown = sample_game(5, record)
    assert shown.text.endswith("<OPENAI_API_KEY>") and "> \\u001b[2J" in shown.text
    alone = recorded(make_game(0, ("main@5",), (), (0.5,), purpose="eval"), 5)
    assert sample_game(5, alone).opponent == "alone"


# TensorBoard


def events(folder: RunFolder) -> Any:
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    return accumulators.EventAccumulator(str(folder.tensorboard)).Reload()


def scalar(folder: RunFolder, name: str) -> list[tuple[int, Any]]:
    return [(event.step, pytest.approx(event.value)) for event in events(folder).Scalars(name)]


def test_tensorboard_shows_each_row_also_after_a_resume(tmp_path: Path) -> None:
    config = make_config(tracking={"dashboard": "off", "tensorboard": True})
    folder = RunFolder(tmp_path)
    tracker = run_updates(make_tracker(tmp_path, config))
    name = "eval/TicTacToe-v0/random/sampled/score"
    # Read during the run: rows are flushed.
    assert scalar(folder, name) == [(0, 0.5), (1, 0.6), (2, 0.6)]
    assert scalar(folder, "learn/loss") == [(1, 0.042), (2, 0.042)]
    assert {"version", "learn/grad_norm"}.isdisjoint(events(folder).Tags()["scalars"])
    told = events(folder).SummaryMetadata(name).summary_description
    assert told == "wins plus half the draws, divided by games (share)"
    tracker.close()
    rows = folder.metrics.read_bytes().splitlines(keepends=True)
    folder.metrics.write_bytes(b"".join(rows[:2]))  # resumes from version 1
    resumed = make_tracker(tmp_path, config)
    assert scalar(folder, name) == [(0, 0.5), (1, 0.6)]
    resumed.log_evaluation([make_score(2, score=0.75)])
    resumed.end_update(2)
    resumed.close()
    assert scalar(folder, name) == [(0, 0.5), (1, 0.6), (2, 0.75)]
    assert len([*folder.tensorboard.iterdir()]) == 2
    assert "cannot be written" not in printed(tracker) + printed(resumed)


def test_missing_tensorboard_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unstable.tracking.sinks.tensorboard.find_spec", lambda _: None)
    config = make_config(tracking={"tensorboard": True})
    refused(r"tracking\.tensorboard = true: .*run `pip install", check_sinks, config)
    check_sinks(make_config())


# Weights & Biases


def wandb_records(path: Path) -> Iterator[Any]:
    """Yield the records that `wandb sync` would send, from LevelDB's log of 32 KiB blocks."""
    record: Any = import_module("wandb.proto.wandb_internal_pb2").Record
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 2**15 - at % 2**15) < 7:
            at += left
            continue
        _, length, part = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):  # a whole record, or the last part of it
            yield record.FromString(whole)
            whole = b""


def wandb_history(records: Sequence[Any]) -> list[dict[str, Any]]:
    rows = [record.history.item for record in records if record.HasField("history")]
    names = [{"/".join(item.nested_key) or item.key: item for item in row} for row in rows]
    return [{name: json.loads(i.value_json) for name, i in row.items()} for row in names]


def test_wandb_receives_rows_game_tables_and_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("WANDB_RUN_ID", "my-run-1")  # as a launcher does
    config = make_config(tracking={"dashboard": "off", "wandb": "unstable-test"})
    root = tmp_path / "run"
    tracker = make_tracker(root, config)
    for number in range(20):
        result = make_game(number, ("main@0", "random"), trained=(), purpose="eval")
        tracker.add_eval_episode(result, version=0)
    run_updates(tracker)
    assert wandb.run.config["learner"]["batch_size"] == config.learner.batch_size
    report = RunFolder(root).report
    report.write_text("<p>a report")
    tracker.end("all updates made", report)
    tracker.close()
    assert "cannot be written" not in printed(tracker)

    [path] = root.glob("wandb/offline-run-*/*.wandb")
    records = [*wandb_records(path)]
    history = wandb_history(records)
    assert [row["version"] for row in history] == [0, 1, 2]
    assert history[2]["learn/loss"] == 0.042 and "learn/grad_norm" not in history[2]
    logged = {each.artifact.type: each.artifact for each in records if each.HasField("artifact")}
    [entry] = logged["report"].manifest.contents
    assert (entry.path, Path(entry.local_path)) == ("report.html", report)
    assert any(record.HasField("exit") for record in records)

    [first, *_] = sorted(path.parent.glob("files/media/table/eval/games_*.json"))
    table = json.loads(first.read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [row["game"] for row in rows] == [*range(MOST_GAMES)]
    assert {(row["env"], row["opponent"], row["outcome"]) for row in rows} == {
        ("TicTacToe-v0", "random", 1.0)
    }
    assert "main@0" in rows[0]["text"] and "✓" in rows[0]["text"]

    monkeypatch.delenv("WANDB_RUN_ID")
    resumed = make_tracker(root, config)
    assert wandb.run.id == "my-run-1"
    resumed.close()
    with pytest.raises(ConfigError, match=r"^tracking.wandb = 'unstable-test': .*tags"):
        make_tracker(root, config.updated({"tracking.tags": ["x" * 70]}))


# Documentation


PAGE = (ROOT / "docs/tracking.md").read_text(encoding="utf-8")


def test_documentation_lists_every_sink_method() -> None:
    named = set(re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE))
    assert named == {name for name, value in vars(Sink).items() if callable(value)} - {"__init__"}


@pytest.mark.slow
def test_documented_sink_and_callbacks_run_in_a_real_loop(
    tmp_path: Path,
    tiny_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Together: a sink from the config, and callbacks."""
    sink, script = blocks("python", PAGE)
    (tmp_path / "my_sinks.py").write_text(sink)
    small = (
        f'"model.name": {str(tiny_folder)!r}, "model.adapter.rank": 4, "actors.num": 1, '
        '"learner.batch_size": 16, "learner.micro_batch_size": 16, "eval.games": 2, '
        '"eval.opponents": "random", "eval.temperature": 1.0, "learner.epochs": 1, '
        '"tracking.run_dir": "run", "tracking.sinks": "my_sinks:ScoreFile", '
        '"tracking.dashboard": "off", "eval.exploitability.every": 0, '
    )
    assert script.count('"tiny", {') == 1
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with locally():
        exec(script.replace('"tiny", {', f'"tiny", {{{small}'), {})
    events = r"^(?:update \d(?= loss)|evaluated \d|over: .*)"
    said = re.findall(events, capsys.readouterr().out, re.MULTILINE)
    assert said == [
        *("evaluated 0", "update 0", "evaluated 1", "update 1", "evaluated 2", "update 2"),
        "over: all updates made",
    ]
    scores = (tmp_path / "run/scores.txt").read_text().splitlines()
    assert [one.split()[:3] for one in scores] == [[v, "TicTacToe-v0", "random"] for v in "012"]
