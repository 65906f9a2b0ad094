"""The tracker writes the run's true figures, and no sink can stop a run."""

import dataclasses
import json
import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.helpers.builders import completion, sampled
from tests.helpers.mistakes import refused
from tests.helpers.records import as_played
from tests.helpers.rows import every_row
from tests.helpers.tracking import (
    lines,
    make_config,
    make_game,
    make_rating,
    make_score,
    make_tracker,
    make_trajectories,
    printed,
    run_updates,
    shown,
    take_in,
)
from unstable.config import parse
from unstable.records.folder import RunFolder
from unstable.records.games import read_game
from unstable.records.reading import read_rows
from unstable.records.text import duration, number
from unstable.tracking.metrics import EngineMetrics
from unstable.tracking.play import PlayMetrics
from unstable.tracking.sft import SFTTracker
from unstable.tracking.sinks import MetricsFile
from unstable.tracking.summary import summary
from unstable.tracking.text import sparkline, update_line
from unstable.types import Segment, Update
from unstable.types.metrics import EvalKey, VersusKey, metric
from unstable.types.play import PlayTally, entropy, opponents


def test_thought_tokens_exclude_inserted_tokens() -> None:
    """Three trained turns of 2, 5 and 8 sampled tokens; the last thought was cut."""
    result = make_game(0, turns=5)
    first, second, third = (turn for turn in result.turns if turn.seat == 0)
    cut = Segment(token_ids=[7] * 4, scored=False)
    segments = completion(token_ids=[5] * 6, logprobs=[-1.0] * 6), cut, completion()
    five = completion(token_ids=[5] * 5, logprobs=[-1.0] * 5)
    plain = sampled()
    first.answer = replace(first.answer, sampled=plain)
    second.answer = replace(second.answer, sampled=replace(plain, segments=(five,), thought=3))
    third.answer = replace(third.answer, sampled=replace(plain, segments=segments, thought=6))
    tally = PlayTally.empty()
    tally.add_game(result, [])
    means = {name: tally.totals[name] / weight for name, weight in tally.weights.items() if weight}
    assert means["collect/completion_length"] == pytest.approx((2 + 5 + 8) / 3)
    assert means["collect/thought_length"] == pytest.approx((0 + 3 + 6) / 3)
    assert means["collect/action_length"] == pytest.approx((2 + 2 + 2) / 3)
    assert means["collect/thought_ended_share"] == pytest.approx(1 / 3)


def test_means_weight_turns_equally(tmp_path: Path) -> None:
    tracker = make_tracker(tmp_path)
    for game in (make_game(0, turns=1), make_game(1, turns=5, outcomes=(-1.0, 1.0))):
        take_in(tracker, game, make_trajectories(game), version=1)
    tracker.end_update(1)
    row = lines(tmp_path / "metrics.jsonl")[0]
    # By game: trained turns 0 | 0, 2, 4; tokens 2 | 2, 4, 6; outcomes 1 | -1, -1, -1.
    assert row["collect/trained_turns"] == 4
    assert row["collect/completion_length"] == pytest.approx(14 / 4)
    assert row["collect/reward/outcome"] == pytest.approx(-2 / 4)
    assert row["collect/reward"] == pytest.approx(-2 / 4 + 0.1)
    assert row["collect/outcome/TicTacToe-v0/0"] == pytest.approx(0.0)
    assert row["collect/outcome/TicTacToe-v0/1"] is None
    assert row["collect/game_length"] == pytest.approx(3.0)
    assert row["collect/prompt_cut_share"] == pytest.approx(1 / 4)
    assert row["collect/prompt_cut_tokens"] == pytest.approx(5.0)
    assert row["collect/seconds_per_character"] == pytest.approx(
        4 * 0.5 / (4 * len("Zug [0] ✓") + 0 + 0 + 2 + 4)
    )
    assert row["collect/versus/random/win"] == pytest.approx(0.5)
    assert row["collect/versus/self/share"] == 0.0
    assert row["collect/distinct_games/TicTacToe-v0"] == 1.0


@given(st.permutations([(0.1, "1"), (0.7, "1"), (1 / 3, "2"), (-0.9, "3"), (0.2, "4"), (3.0, "4")]))
def test_means_and_entropy_do_not_depend_on_order_of_games(games: list[tuple[float, str]]) -> None:
    env, metrics = "TicTacToe-v0", PlayMetrics(make_config())
    for reward, action in games:
        actions = {env: {action: 1, "5": 3}}
        metrics.tally.add(PlayTally({}, {}, {}, {"collect/reward": [reward]}, actions, {}))
    row = metrics.take(1.0)
    assert row["collect/reward"] == 0.5722222222222222
    assert row[f"collect/action_entropy/{env}"] == 0.8947504818324978
    assert metrics.take(1.0)["collect/reward"] is None


def test_results_and_forfeits_are_counted_by_opponent(tmp_path: Path) -> None:
    tracker = make_tracker(tmp_path)
    games = [
        make_game(0, ("main@3", "main@3"), (0, 1), (1.0, -1.0)),
        make_game(1, ("main@1", "main@3"), (1,), (0.0, 0.0)),
        make_game(2, ("main@3", "random"), (0,), (-1.0, 0.0), turns=3, forfeit=0),
        make_game(3, ("random", "main@3"), (1,), (-1.0, 0.0), turns=3, forfeit=0),
    ]
    for game in games:
        take_in(tracker, game, make_trajectories(game), version=3)
    tracker.end_update(3)
    row = lines(tmp_path / "metrics.jsonl")[0]

    def versus(opponent: str) -> list[float]:
        names = ("games", "win", "draw", "loss", "forfeit")
        return [row[f"collect/versus/{opponent}/{name}"] for name in names]

    assert versus("self") == [2, 0.5, 0, 0.5, 0]
    assert versus("past") == [1, 0, 1, 0, 0]
    assert versus("random") == versus("fixed") == [2, 0.5, 0, 0.5, 0.5]
    assert versus("others") == pytest.approx([3, 1 / 3, 1 / 3, 1 / 3, 1 / 3])
    assert row["collect/forfeits"] == 2
    assert row["collect/draws"] == 1
    assert row["collect/versus/random/share"] == 0.5
    assert opponents(make_game(4, ("main@3",), (0,), (1.0,)).spec) == ["alone"]


def test_engine_counters_are_differenced_and_survive_a_restart() -> None:
    engine = EngineMetrics()
    assert engine.values(1.0) == {}
    engine.add(0, {"sampled_tokens": 100, "decode_steps": 10, "running": 3})
    engine.add(1, {"sampled_tokens": 50, "decode_steps": 5, "running": 4})
    engine.reset()
    engine.add(0, {"sampled_tokens": 130, "decode_steps": 20, "running": 1})
    assert engine.values(1.0)["collect/engine/adapter_hit_share"] is None  # the embedded engine
    engine.add(0, {"sampled_tokens": 130, "adapter_requests": 8, "adapter_hits": 6, "running": 1})
    engine.add(1, {"sampled_tokens": 20, "decode_steps": 5, "running": 2})  # restarted at 0
    row = engine.values(seconds=10.0)
    assert row["collect/engine/tokens_per_second"] == pytest.approx((30 + 20) / 10)
    assert row["collect/engine/tokens_per_step"] == pytest.approx(50 / 10)
    assert row["collect/engine/running"] == 3
    assert row["collect/engine/cached_share"] is None
    assert row["collect/engine/request_tokens"] is None  # no completed request
    assert row["collect/engine/adapter_hit_share"] == 6 / 8
    engine.add(0, {"sampled_tokens": 150, "requests": 5, "prompt_tokens": 200})
    assert engine.values(1.0)["collect/engine/request_tokens"] == (50 + 20 + 200) / 5


def test_unmeasured_engine_metrics_are_null() -> None:
    engine = EngineMetrics()
    engine.add(0, {"requests": 1.0})
    assert engine.values(1.0)["collect/engine/prefill_seconds"] is None
    engine.add(1, {"prefill_seconds": 0.0})
    assert engine.values(1.0)["collect/engine/prefill_seconds"] == 0.0


def test_entropy_equals_hand_computed_values() -> None:
    assert entropy(Counter()) is None
    assert entropy(Counter(a=5)) == 0
    assert entropy(Counter(a=1, b=1, c=2)) == pytest.approx(1.5 * math.log(2))


def test_recorded_games_are_read_back_unchanged(tmp_path: Path) -> None:
    tracker = make_tracker(tmp_path)
    result = make_game(5, turns=5, forfeit=0)
    take_in(tracker, result, make_trajectories(result), version=7, actor=2)
    tracker.add_eval_episode(make_game(5, trained=(), purpose="eval"), version=7)
    take_in(tracker, result, [], version=8)
    [evaluation] = lines(tmp_path / "games" / "eval-000007.jsonl")
    assert evaluation["actor"] is None and evaluation["turns"][0]["rewards"] is None
    [game] = lines(tmp_path / "games" / "train-000007.jsonl")
    assert len(lines(tmp_path / "games" / "train-000008.jsonl")) == 1
    assert (game["game"], game["version"], game["actor"], game["forfeit"]) == (5, 7, 2, 0)
    assert game["players"] == ["main@1", "random"]
    assert [seat.get("group_id") for seat in game["seats"]] == [50, None]
    assert as_played(read_game("a line", game)) == as_played(result)


def test_rows_keep_all_names_with_null_for_missing_values(tmp_path: Path) -> None:
    tracker = make_tracker(tmp_path)
    tracker.log_evaluation([make_score(0)])
    tracker.end_update(0)
    tracker.log_learner(Update(version=1, metrics={"learn/loss": math.nan}, advantages=[]))
    tracker.end_update(1)
    first, second = read_rows(tmp_path / "metrics.jsonl")
    assert set(first) <= set(second)
    assert first["eval/TicTacToe-v0/random/sampled/score"] == 0.5
    assert second["eval/TicTacToe-v0/random/sampled/score"] is None
    assert second["learn/loss"] is None
    tracker.close()
    make_tracker(tmp_path).end_update(2)
    assert set(read_rows(tmp_path / "metrics.jsonl")[2]) == set(second)
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()


def test_skipped_step_is_printed_and_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    refusals = ["the loss is nan", "the loss is nan", "the gradient's norm is inf"]
    update = Update(version=3, metrics={}, advantages=[], refusals=refusals)
    line = (
        "update 3: skipped 3 optimizer steps: the loss is nan; the gradient's norm is inf; "
        "the weights are unchanged"
    )
    tracker = make_tracker(tmp_path)
    tracker.log_learner(update)
    tracker.close()
    assert line in printed(tracker)
    (tmp_path / "sft").mkdir()
    supervised = SFTTracker(parse({}), RunFolder(tmp_path / "sft"), epochs=1, steps=1)
    supervised.log_refusals(update)
    supervised.close()
    assert line in capsys.readouterr().out.splitlines()
    assert line in caplog.text


def test_every_written_metric_is_declared(tmp_path: Path) -> None:
    config = make_config(games=[{"env": "TicTacToe-v0"}, {"env": "Sokoban-v0", "seats": 1}])
    run_updates(make_tracker(tmp_path, config))
    names = read_rows(tmp_path / "metrics.jsonl")[-1]
    assert [name for name in names if metric(name) is None] == []
    assert any(name.startswith("collect/versus/alone/") for name in names)


def test_each_temperature_has_its_own_metrics(tmp_path: Path) -> None:
    tracker = make_tracker(tmp_path, make_config(eval={"temperature": [1.0, 0.0, 0.5]}))
    for temperature in (0.0, 0.5, 1.0):  # in any order
        tracker.log_evaluation([make_score(0, score=temperature, temperature=temperature)])
    tracker.end_update(0)
    (row,) = read_rows(tmp_path / "metrics.jsonl")
    place = "eval/TicTacToe-v0/random"
    assert (row[f"{place}/sampled/score"], row[f"{place}/sampled/temperature"]) == (1.0, 1.0)
    assert (row[f"{place}/greedy/score"], row[f"{place}/greedy/temperature"]) == (0.0, 0.0)
    assert (row[f"{place}/t0.5/score"], row[f"{place}/t0.5/temperature"]) == (0.5, 0.5)
    tracker.finish("all updates made")
    shown = printed(tracker)
    assert "TicTacToe-v0 against random, greedy: score 0.00" in shown
    assert "TicTacToe-v0 against random, t0.5: score 0.50" in shown
    assert "TicTacToe-v0 against random: score 1.00" in shown
    table = shown.partition("Evaluations")[2]
    assert re.findall(r"v0 +(random.*?) +(\d\.\d+) ", table) == [
        ("random, greedy", "0.00"),
        ("random, t0.5", "0.50"),
        ("random", "1.00"),
    ]


def test_phase_times_sum_to_the_rows_time(tmp_path: Path) -> None:
    run_updates(make_tracker(tmp_path))
    for row in read_rows(tmp_path / "metrics.jsonl"):
        names = [name for name in row if name.startswith("time/") and name != "time/total"]
        assert sum(row[name] or 0.0 for name in names) == pytest.approx(row["time/total"], abs=0.05)
    assert row["time/play"] and row["time/update"] and row["time/publish"]


def test_progress_advances_with_every_game(tmp_path: Path) -> None:
    tracker = make_tracker(tmp_path)
    tracker.phase("playing", 2, 5)
    result = make_game(0, turns=3)
    take_in(tracker, result, make_trajectories(result), version=0)
    assert (tracker.view.phase.done, tracker.view.phase.total) == (4, 5)
    take_in(tracker, result, make_trajectories(result), version=0)
    assert tracker.view.phase.done == 5
    tracker.phase("evaluating", 0, 3)
    tracker.add_eval_episode(result, version=0)
    assert tracker.view.phase.done == 1


def test_records_contain_their_format(tmp_path: Path) -> None:
    run_updates(make_tracker(tmp_path))
    folder = RunFolder(tmp_path)
    paths = [folder.metrics, folder.ratings, folder.games("train", 0), folder.samples(1)]
    assert [line["format"] for path in paths for line in lines(path)] == [2] * (3 + 1 + 2 + 5)
    assert all("format" not in row for row in read_rows(folder.metrics))


@pytest.mark.fault("disk full")
def test_failed_writes_leave_only_whole_lines(tmp_path: Path) -> None:
    tracker = make_tracker(tmp_path)
    tracker.end_update(0)
    [metrics] = [sink for sink in tracker.recording.sinks if isinstance(sink, MetricsFile)]
    metrics.close()  # later writes raise
    tracker.end_update(1)
    tracker.end_update(2)
    assert [row["version"] for row in read_rows(tmp_path / "metrics.jsonl")] == [0]
    assert printed(tracker).count("cannot be written") == 1


@pytest.mark.fault("a start-up check fails")
def test_unwritable_folder_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    refused(r"tracking\.run_dir.*out.*another folder", make_tracker, tmp_path / "out")


def test_ratings_are_replaced_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = make_tracker(tmp_path)
    tracker.log_ratings([make_rating("main@0", 25.0)])
    before = (tmp_path / "ratings.json").read_bytes()
    assert json.loads(before)["players"][0]["mu"] == 25.0

    def die(*_: object) -> None:
        raise OSError("power cut")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", die)
        tracker.log_ratings([make_rating("main@1", 30.0)])
    assert (tmp_path / "ratings.json").read_bytes() == before


def test_update_is_one_line_without_a_dashboard(tmp_path: Path) -> None:
    tracker = run_updates(make_tracker(tmp_path), updates=1)
    evaluation, update = [line for line in printed(tracker).splitlines() if "version 1" not in line]
    assert evaluation == (
        "evaluation of version 0 · TicTacToe-v0 against random: score 0.50 (0.30 to 0.70) · 6 won, "
        "4 drawn, 6 lost (2 by forfeit) · 90 % legal moves"
    )
    assert re.fullmatch(
        r"update 1/3 · 2 games, 1 against others \(1 won, 0 drawn, 0 lost\) · 0 forfeits · "
        r"1 failed · reward 0\.5 · loss 0\.042 · \d+ s",
        update,
    )


def test_evaluation_line_shows_distinct_and_needed_games(tmp_path: Path) -> None:
    tracker = make_tracker(tmp_path)
    tracker.log_evaluation([dataclasses.replace(make_score(0), distinct=2)])
    tracker.log_evaluation([dataclasses.replace(make_score(1), needed=1234)])
    tracker.log_evaluation([dataclasses.replace(make_score(2), distinct=2, opponent="base")])
    repeats, needs, _ = printed(tracker).splitlines()
    assert "6 lost (2 by forfeit) in 2 distinct games · 90 % legal moves" in repeats
    assert "needs" not in repeats and "distinct" not in needs
    assert needs.endswith("90 % legal moves · a difference of 0.05 needs 1,234 games")
    tracker.end_update(0)
    tracker.finish("all updates made")
    assert "16 (2 distinct)" in printed(tracker)


def test_update_line_without_new_games_says_so(tmp_path: Path) -> None:
    run_updates(make_tracker(tmp_path), updates=1)
    row = read_rows(tmp_path / "metrics.jsonl")[-1]
    none = {name: 0 for name in row if name.startswith("collect/") and row[name] is not None}
    line = update_line(row | none | {"collect/reward": None, "version": 2}, steps=3)
    assert line.startswith("update 2/3 · games from before the previous update · loss 0.042 ·")
    assert update_line(row, steps=3, left_s=200).endswith(" · about 3 min 20 s left")


def test_summary_shows_first_and_last_results_and_paths(tmp_path: Path) -> None:
    tracker = run_updates(make_tracker(tmp_path / "out"))
    tracker.close()
    resumed = make_tracker(tmp_path / "out")
    assert len(resumed.view.summary.rows) == 3 and resumed.view.version == 2
    resumed.finish("all updates made")
    resumed.close()
    resumed.close()
    text = printed(resumed)
    assert "all updates made" in text and "version 2 · 4 training games · 10 trained turns" in text
    evaluation = next(line for line in text.splitlines() if line.startswith("TicTacToe-v0"))
    assert "0.50 (0.30 to 0.70)        2  0.60 (0.40 to 0.80)" in evaluation
    assert re.search(r"^self +4 +0 % +100 %", text, re.MULTILINE)
    assert re.search(r"^main@2 +26\.0", text, re.MULTILINE)
    assert str(tmp_path / "out" / "metrics.jsonl") in text


def metrics_row(version: int, games: int, **figures: float | None) -> dict[str, Any]:
    """Return a row of an update with an evaluation."""
    versus, evaluation = VersusKey("self"), EvalKey("TicTacToe-v0", "minimax", "sampled")
    counts = {"collect/games": games, "collect/trained_turns": 20 * bool(games)}
    counts |= {"collect/forfeits": 3 * bool(games), "collect/failures": int(bool(games))}
    results = dict.fromkeys(("draw", "loss", "forfeit"), None) | {"games": games // 2}
    results["win"] = 0.5 if games else None
    results_of_16 = {"games": 16, "wins": 4, "draws": 8, "losses": 4, "forfeits": 0}
    scores = {**results_of_16, "distinct": 16, "legal_moves": 1.0, **figures}
    return {
        "format": 2,
        "version": version,
        **counts,
        **{versus.name(name): value for name, value in results.items()},
        **{evaluation.name(name): value for name, value in scores.items()},
        "time/total": 60.0 + 65 * bool(games),
    }


METRICS = "".join(
    json.dumps(row) + "\n"
    for row in (
        metrics_row(0, 0, score=0.25, low=0.1, high=0.45),
        metrics_row(1, 8, score=0.5, low=0.3, high=0.7),
    )
)
RATINGS = (
    '{"format":2,"players":[{"player":"main@1","mu":26.25,"sigma":2.0,"games":12,"wins":6,"draws":2,'
    '"losses":4,"forfeits":1},{"player":"minimax","mu":30,"sigma":1.5,"games":1300,"wins":1200,'
    '"draws":100,"losses":0,"forfeits":0}]}\n'
)


@pytest.fixture
def left_folder(tmp_path: Path) -> RunFolder:
    """Make a folder with the metrics and ratings of an earlier run."""
    folder = RunFolder(tmp_path / "left")
    folder.root.mkdir()
    folder.metrics.write_text(METRICS)
    folder.ratings.write_text(RATINGS)
    return folder


def summarized(folder: RunFolder) -> str:
    return shown(summary(folder, "interrupted"), 200)


def test_summary_rows_cover_disjoint_opponents(left_folder: RunFolder) -> None:
    row = {"version": 2, "collect/games": 10, "time/total": 1.0}
    for name, games in (("self", 4), ("others", 6), ("past", 2), ("fixed", 4), ("random", 4)):
        shares = dict.fromkeys(("win", "draw", "loss", "forfeit"), 0.5)
        row |= {VersusKey(name).name(share): value for share, value in shares.items()}
        row[VersusKey(name).name("games")] = games
    left_folder.metrics.write_text(json.dumps(row) + "\n")
    table = re.findall(r"^(\S+) +(\d+) +50 %", summarized(left_folder), re.MULTILINE)
    assert table == [("self", "4"), ("past", "2"), ("random", "4")]


def test_summary_of_an_earlier_run(left_folder: RunFolder) -> None:
    text = summarized(left_folder)
    head = "version 1 · 8 training games · 20 trained turns · 3 forfeits · 1 failed · 3 min 05 s"
    assert "interrupted" in text and head in text
    evaluation = next(line for line in text.splitlines() if line.startswith("TicTacToe-v0"))
    assert evaluation.split() == [
        *("TicTacToe-v0", "minimax", "0.25", "(0.10", "to", "0.45)", "1", "0.50", "(0.30", "to"),
        *("0.70)", "16", "100", "%"),
    ]
    assert re.search(r"^self +4 +50 %", text, re.MULTILINE)
    ratings = re.search(r"^minimax +(.*)\nmain@1 +(.*)$", text, re.MULTILINE)
    assert ratings is not None
    assert ratings[1].split() == ["30.0", "1.5", "1,300", "1,200", "100", "0", "0"]
    assert ratings[2].split() == ["26.2", "2.0", "12", "6", "2", "4", "1"]


def test_tracker_continues_an_earlier_run(left_folder: RunFolder) -> None:
    tracker = make_tracker(left_folder.root)
    assert [row["version"] for row in tracker.view.summary.rows] == [0, 1]
    assert tracker.view.version == 1
    tracker.end_update(2)
    tracker.close()
    assert [line.get("format") for line in lines(left_folder.metrics)] == [2, 2, 2]
    first, _, last = read_rows(left_folder.metrics)
    assert set(first) < set(last) and "format" not in last
    assert last["eval/TicTacToe-v0/minimax/sampled/score"] is None
    assert "version 2 · 8 training games" in summarized(left_folder)


def test_other_record_formats_are_errors(left_folder: RunFolder) -> None:
    row = json.dumps({"format": 1, "version": 2})
    left_folder.metrics.write_text(METRICS + row + "\n")
    refused(r"metrics\.jsonl:3: format = 1: .*repeat", make_tracker, left_folder.root)
    refused(r"metrics\.jsonl:3: format = 1: .*repeat", summarized, left_folder)
    left_folder.metrics.write_text(METRICS)
    left_folder.ratings.write_text(json.dumps(json.loads(RATINGS) | {"format": 3}))
    refused(r"ratings\.json: format = 3: .*release", summarized, left_folder)
    tracker = make_tracker(left_folder.root)
    tracker.finish("all updates made")
    assert "the summary cannot be written" in printed(tracker)
    tracker.close()


def test_summary_of_a_run_without_results(tmp_path: Path) -> None:
    tracker = make_tracker(tmp_path)
    tracker.finish("no space is left", "failed")
    assert "The run ended: failed" in printed(tracker)


def test_closed_pipe_does_not_stop_the_run(tmp_path: Path) -> None:
    """A closed pipe, as with `run.sh | head -1`, does not end a run, though Rich would exit."""
    code = (
        "import sys; from pathlib import Path; from tests.helpers.tracking import *\n"
        f"t = Tracker(make_config(), RunFolder(Path({str(tmp_path / 'run')!r})))\n"
        "for i in range(2000): t.print('a line that nobody reads ' * 20)\n"
        "t.finish('done'); t.close(); print('alive', file=sys.stderr)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert "alive" in process.stderr.read()
    assert process.wait(60) == 0


def test_library_logs_go_to_the_log_file(tmp_path: Path) -> None:
    script = f"""
import logging, warnings
from pathlib import Path
early = logging.getLogger("early")
early.addHandler(logging.StreamHandler())
from unstable.records.folder import RunFolder
from unstable.records.logs import setup_logging
setup_logging(RunFolder(Path({str(tmp_path)!r})), "actor-0")
import torch
from transformers.utils import logging as transformers_logging
early.warning("from early")
logging.getLogger("torch.distributed").warning("from torch")
transformers_logging.get_logger("transformers.modeling_utils").warning("from transformers")
warnings.warn("from warnings")
logging.getLogger("httpx").info("chatter")
logging.getLogger("unstable.loop.train").info("from us")
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    text = (tmp_path / "logs" / "actor-0.log").read_text()
    for source in ("early", "torch", "transformers", "warnings", "us"):
        assert f"from {source}" in text
    assert "chatter" not in text
    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", text)


@every_row(
    "value, text", (None, "–"), (0.0, "0"), (99.96, "100"), (-1234.5, "−1,234"), (1e-4, "0.0001")
)
def test_numbers_are_formatted(value: float | None, text: str) -> None:
    assert number(value) == text


def test_durations_and_sparklines_are_formatted() -> None:
    durations = [duration(seconds) for seconds in (0.4, 59.4, 59.6, 3599.6)]
    assert durations == ["0 s", "59 s", "1 min 00 s", "1 h 00 min"]
    assert sparkline([], 5) == sparkline([None], 5) == ""
    assert sparkline([1.0, 1.0], 5) == "▄▄"
    assert sparkline([-4.77e-18, 3e-17, 0.0], 5) == "▄▄▄"  # of centred advantages
    assert sparkline([5.0, 0.0, None, 7.0], 3) == "▁ █"
