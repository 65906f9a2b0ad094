"""Dashboard at terminals of every size; its failures do not affect the run."""

import io
import json
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from rich.console import Console

from tests.helpers.rows import every_row
from tests.helpers.tracking import (
    ENGINE,
    make_config,
    make_exploitability,
    make_game,
    make_rating,
    make_tracker,
    make_trajectories,
    printed,
    run_updates,
    shown,
    take_in,
)
from unstable.config import RunConfig
from unstable.planning.usage import DeviceProbe
from unstable.records.folder import RunFolder
from unstable.tracking.dashboard import Dashboard, screenshot
from unstable.tracking.panes import evaluation_pane, machine_line, machine_pane
from unstable.tracking.tracker import Tracker
from unstable.tracking.view import RunView
from unstable.types import GameResult, LeastWon, PlayerId
from unstable.types.intervals import Interval
from unstable.types.tallies import Least

SIZES = [(80, 24), (120, 40), (160, 50)]
GPU = {
    **{"device/cpu_percent": 50.0, "device/process_memory_gb": 3.25, "device/memory_percent": 40.0},
    **{"device/gpu0_percent": 88.0, "device/gpu0_memory_gb": 61.0},
    "device/gpu0_memory_percent": 43.0,
}


def render(view: RunView, width: int, height: int) -> str:
    """Return the dashboard's text, which fills the terminal and no more."""
    text = shown(Dashboard(view), width, height)
    lines = text.splitlines()
    assert len(lines) == height and all(len(line) <= width for line in lines)
    return text


def read_again(view: RunView) -> RunView:
    """Return the view that another process reads from the status file."""
    record = json.loads(json.dumps(view.record()))
    return RunView.read(record, view.config, view.summary, lambda: 0.0)


@every_row("width, height", *SIZES)
def test_dashboard_fills_terminal_with_all_panes(tmp_path: Path, width: int, height: int) -> None:
    tracker = run_updates(make_tracker(tmp_path, device="two cores"))
    tracker.phase("playing", 30, 128)
    text = render(tracker.view, width, height)
    for title in ("collection", "last game", "ratings", "learner", "evaluation"):
        assert f"─ {title} ─" in text
    assert re.search(r"games +4 .*· 2 failed", text)
    assert re.search(r"main@2 +26\.0 +2\.0", text)
    assert re.search(r"loss +0\.042 +▄▄", text)
    assert re.search(r"random +2 +0\.60 +0\.40–0\.80", text)
    assert re.search(r"random +2 +100 % +0 % +0 %", text)
    assert re.search(r"playing +[━╸╺ ]+ +30/128", text)
    assert "update 3 of 3" in text and "75 % cached" in text
    assert "main@1 (+0) against main@1 (+0)" in text
    assert "[0] [1] [2]" in text, "a game's brackets are not markup"
    assert "board 2" in text


@every_row("width, height", *SIZES)
def test_exploitability_shows_first_and_last_value(tmp_path: Path, width: int, height: int) -> None:
    tracker = make_tracker(tmp_path)
    tracker.log_exploitability(make_exploitability(0, 0.912, 0.95, env="a/b:Nim"))
    tracker.end_update(0)
    assert re.search(r"exploit\. a:b:Nim +0 +0\.912–0\.950\b(?! →)", wide_pane(tracker.view))
    run_updates(tracker)
    for version, low in ((1, 0.61), (2, 0.3204)):
        tracker.log_exploitability(make_exploitability(version, low, low, env="a/b:Nim"))
        tracker.end_update(version)
    assert re.search(r" 2 +0\.912–0\.950 → 0\.320\b", render(tracker.view, width, height))
    assert "0.912–0.950 → 0.320" in wide_pane(read_again(tracker.view))


@every_row("width, height", *SIZES)
def test_worst_past_payoff_is_shown(tmp_path: Path, width: int, height: int) -> None:
    tracker = make_tracker(tmp_path)
    found = replace(make_exploitability(8, 0.2, 0.2), past=LeastWon(4, -0.1234, 0.05, 6))
    tracker.log_exploitability(found)
    tracker.end_update(0)
    run_updates(tracker)
    expected = r"worst past payoff +@4 +−0\.123–0\.050"
    assert re.search(expected, render(tracker.view, width, height))
    assert re.search(expected, wide_pane(read_again(tracker.view)))


def test_resumed_run_shows_its_first_exploitability(tmp_path: Path) -> None:
    tracker = make_tracker(tmp_path)
    tracker.log_exploitability(make_exploitability(0, 0.9, 0.9, env="a/b"))
    tracker.end_update(0)
    tracker.close()
    again = make_tracker(tmp_path)
    again.log_exploitability(make_exploitability(250, 0.1, 0.1, env="a/b"))
    again.end_update(250)
    assert re.search(r"exploit\. a:b +250 +0\.900 → 0\.100", wide_pane(again.view))
    again.finish("all updates made")
    assert re.search(r"a:b +0\.900 +0\.100 +250 ", printed(again)), "the summary has it too"


@every_row("width, height", *SIZES)
def test_worst_case_score_is_with_evaluations(tmp_path: Path, width: int, height: int) -> None:
    tracker = run_updates(make_tracker(tmp_path))
    least = Least("main@1", Interval(0.31, 0.12, 0.48), games=24, compared=5, left_out=1)
    tracker.log_worst({"main": least, "spar": least._replace(opponent="spar@0")})
    tracker.end_update(3)
    tracker.log_worst({"main": least._replace(score=Interval(0.42, 0.2, 0.5))})
    tracker.end_update(4)
    shown = render(tracker.view, width, height)
    assert re.search(r"worst vs\. main@1 +0\.42 +0\.20–0\.50", shown)
    assert re.search(r"worst vs\. spar@0 +0\.31 +0\.12–0\.48", shown), "it is unchanged"
    assert "worst vs. spar@0" in wide_pane(read_again(tracker.view))


def wide_pane(view: RunView) -> str:
    return shown(evaluation_pane(view, 80, 10), 80)


@every_row("width, height", (40, 10), (120, 12), (30, 40))
def test_small_terminal_shows_progress(tmp_path: Path, width: int, height: int) -> None:
    tracker = run_updates(make_tracker(tmp_path))
    tracker.phase("playing", 30, 128)
    shown = [line.strip() for line in render(tracker.view, width, height).splitlines()]
    assert shown[:2] == ["update 3 of 3", "playing 30/128"]
    assert shown[3] == "4 games, 2 failed" and shown[4] == "random 0.60"


@every_row("width, height", *SIZES, (20, 5), (300, 100))
def test_dashboard_renders_before_any_event(tmp_path: Path, width: int, height: int) -> None:
    tracker = make_tracker(tmp_path, make_config(loop={"steps": 0}))
    render(tracker.view, width, height)


@every_row("width, height", *SIZES)
def test_ratings_are_shown_before_training_games(tmp_path: Path, width: int, height: int) -> None:
    """Ratings are shown before any training game, as after the evaluation of version 0."""
    tracker = make_tracker(tmp_path)
    tracker.log_ratings([make_rating("main@0", 20.0), make_rating("random", 25.0)])
    text = render(tracker.view, width, height)
    assert "main@0" in text
    assert "cannot be shown" not in text


def test_failing_pane_leaves_the_others_and_is_logged_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = run_updates(make_tracker(tmp_path))
    tracker.view.notice = "the games file cannot be written"
    monkeypatch.setattr(RunView, "opponent_shares", lambda self: 1 / 0)
    for _ in range(2):
        text = render(tracker.view, 120, 40)
        assert "cannot be shown" in text and tracker.view.notice in text
        assert "─ learner ─" in text
    failures = [record for record in caplog.records if "dashboard pane failed" in record.message]
    assert len(failures) == 1


def test_long_games_and_many_players_fit(tmp_path: Path) -> None:
    tracker = run_updates(make_tracker(tmp_path), updates=60)
    game: GameResult = make_game(7, ("main@60", "a/very:long-" + "name" * 30), turns=400)
    take_in(tracker, game, make_trajectories(game), version=60)
    for width, height in SIZES:
        render(tracker.view, width, height)


def test_opponent_shares_sum_games_and_names_are_not_markup(tmp_path: Path) -> None:
    tracker = run_updates(make_tracker(tmp_path), updates=1)
    assert tracker.view.opponent_shares() == {PlayerId("random"): 0.5, PlayerId.policy(1): 0.5}
    assert tracker.view.legal_moves() == 1.0
    tracker = make_tracker(tmp_path / "other")
    tracker.log_ratings([make_rating("[red]bot", 20.0)])
    game = make_game(0, ("main@0", "[red]bot"))
    take_in(tracker, game, make_trajectories(game), version=0)
    text = render(tracker.view, 120, 40)
    assert len(re.findall(r"│ \[red\]bot +(20\.0|1 )", text)) == 2
    assert "against [red]bot (-1)" in text


def test_time_left_is_estimated_from_updates(tmp_path: Path) -> None:
    view = make_tracker(tmp_path).view
    assert view.seconds_left(view.started) is None
    for version, seconds in enumerate((500.0, 40.0)):
        view.add_row({"version": version, "time/total": seconds})
    view.row_started = view.started + 540
    assert view.seconds_left(view.started + 550) == pytest.approx(2 * 40 - 10)
    assert view.seconds_left(view.started + 9000) == 0.0


def test_unsupported_gpu_queries_are_omitted(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = ModuleType("pynvml")

    class NVMLError(Exception):
        pass

    def utilization(handle: int) -> SimpleNamespace:
        if handle == 1:
            raise NVMLError("not supported")
        return SimpleNamespace(gpu=88)

    functions = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=20e9, total=80e9),
        "nvmlDeviceGetUtilizationRates": utilization,
    }
    vars(nvml).update(functions)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    row = DeviceProbe(max_age_s=0).read()
    assert {name: value for name, value in row.items() if "gpu" in name} == {
        "device/gpu0_memory_gb": 20.0,
        "device/gpu0_memory_percent": 25.0,
        "device/gpu0_percent": 88.0,
        "device/gpu1_memory_gb": 20.0,
        "device/gpu1_memory_percent": 25.0,
    }
    assert row["device/process_memory_gb"] > 0 and 0 <= row["device/cpu_percent"] <= 100


def test_machine_pane_shows_gpus(tmp_path: Path) -> None:
    view = make_tracker(tmp_path).view
    sliced = {"device/gpu1_memory_gb": 20.0, "device/gpu1_memory_percent": 25.0}
    view.machine = GPU | sliced
    assert machine_line(view).plain == " CPU 50 % · gpu0 88 % · gpu1 25 % · memory 3.25 GB"
    text = pane(view, 60, 6)
    assert re.search(r"gpu0 +━.* 88 % · 61 GB, 43 %", text)
    assert re.search(r"gpu1 +━.* 25 %\n", text)
    assert re.search(r"memory +━.* 40 % · this run 3.25 GB", text)


def test_machine_pane_lists_as_many_actors_as_fit(tmp_path: Path) -> None:
    tracker = make_tracker(tmp_path)
    tracker.view.machine = GPU
    for actor in range(8):
        tracker.log_actor(actor, ENGINE | {"games_in_flight": float(actor)})
    assert tracker.view.engine["collect/engine/games_in_flight"] == sum(range(8))
    text = pane(tracker.view, 80, 20)
    for actor in range(8):
        assert re.search(rf"actor {actor} .* tokens/s · {actor} games · 3 requests", text)
    short = pane(tracker.view, 80, 6)
    assert "actor 1 " in short and "actor 2 " not in short and "6 more actors" in short


def pane(view: RunView, width: int, height: int) -> str:
    return shown(machine_pane(view, width, height), width)


def test_a_screenshot_is_an_svg(tmp_path: Path) -> None:
    tracker = run_updates(make_tracker(tmp_path / "some-run"))
    svg = screenshot(tracker.view)
    assert svg.startswith("<svg") and "some-run" in svg and "main@2" in svg


def live_tracker(root: Path, config: RunConfig, terminal: bool) -> tuple[Tracker, io.StringIO]:
    file = io.StringIO()
    console = Console(file=file, width=100, height=30, force_terminal=terminal)
    return Tracker(config, RunFolder(root), console=console), file


def test_dashboard_refreshes_in_a_thread_and_restores_the_screen(tmp_path: Path) -> None:
    config = make_config(tracking={"dashboard": "auto"})
    tracker, file = live_tracker(tmp_path, config, terminal=True)
    run_updates(tracker)
    deadline = time.monotonic() + 20
    while "main@2" not in file.getvalue() and time.monotonic() < deadline:
        time.sleep(0.05)
    tracker.finish("all updates made")
    tracker.close()
    screen, _, after = file.getvalue().rpartition("\x1b[?1049l")
    assert "\x1b[?1049h" in screen and "main@2" in screen
    assert "update 1/3" not in file.getvalue(), "no lines beside the dashboard"
    assert "all updates made" in after


def test_no_dashboard_if_off_or_without_a_terminal(tmp_path: Path) -> None:
    for name, setting, terminal in (("a", "off", True), ("b", "auto", False)):
        config = make_config(tracking={"dashboard": setting})
        tracker, file = live_tracker(tmp_path / name, config, terminal)
        run_updates(tracker)
        tracker.close()
        assert "\x1b[?1049h" not in file.getvalue() and "update 1/3" in file.getvalue()


@every_row("width, height", (80, 24), (200, 60))
def test_panes_announce_their_content_at_the_start(tmp_path: Path, width: int, height: int) -> None:
    config = make_config(opponents={"fixed": [{"kind": "random"}]})
    tracker = make_tracker(tmp_path, config)
    tracker.phase("starting: loading the model of actor-0")
    text = render(tracker.view, width, height)
    for words in ("when a game ends", "after the first games", "random", "first metrics"):
        assert words in text
    assert "every 4 updates, from" in text or width < 100
    assert "starting: loading the model of actor-0" in text
    tracker.close()
