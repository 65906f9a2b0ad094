"""Text of games and players is shown, never obeyed, and bounded in length."""

import io
import json
import logging

import pytest
import textarena
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from tests.helpers.builders import answering
from tests.helpers.rows import every_row
from tests.helpers.tracking import (
    lines,
    make_config,
    make_game,
    make_rating,
    make_tracker,
    make_trajectories,
    printed,
    take_in,
)
from unstable import cli
from unstable.collectors.play import play_game
from unstable.collectors.players.python import PythonPlayer
from unstable.config import ConfigError, GameConfig, escape_control, one_line
from unstable.games.game import Game
from unstable.prompts import MAX_CHARACTERS, MAX_EVENTS
from unstable.records.files import json_line
from unstable.records.games import game_body, read_game
from unstable.records.logs import Escaping
from unstable.tracking.dashboard import Dashboard, screenshot
from unstable.types import Alarm, GameFailure, GameSpec, PlayerId, SeatSpec

TITLE = "\x1b]0;owned\x07"
HOSTILE = f"{TITLE}\x1b[2J\r\x9b31m\u202ecba\x7f"
CONTROL = set(HOSTILE) - set("]0;owned[2J31mcba")
ANY = st.text(st.characters() | st.sampled_from(sorted(CONTROL)) | st.sampled_from("\ud800\udfff"))
QUIET = settings(deadline=None, derandomize=True)


@QUIET
@given(ANY)
def test_control_characters_are_escaped(text):
    shown = escape_control(text)
    assert not [c for c in shown if c in CONTROL or (ord(c) < 32 and c not in "\n\t")]
    shown.encode()
    line = one_line(text * 50)
    assert len(line) <= 1000 and line == " ".join(line.split())
    if text.isprintable():
        assert shown == text


@QUIET
@given(ANY)
def test_json_line_keeps_text_without_control_characters(text):
    line = json_line({"text": text})
    assert json.loads(line)["text"] == text
    assert not CONTROL & set(line.decode())


def hostile_run(tmp_path):
    tracker = make_tracker(tmp_path)
    player = f"openai:{HOSTILE}"
    game = make_game(0, players=("main@0", player))
    game.turns[1] = answering(game.turns[1], action=f"[4]{HOSTILE}", text=f"{HOSTILE} \ud800")
    game.turns[2] = answering(game.turns[2], observation=f"The rules.\n\n{HOSTILE}\n")
    take_in(tracker, game, make_trajectories(game), 0)
    tracker.log_ratings([make_rating(player, 25.0)])
    alarm = Alarm(rule="r", name=HOSTILE, version=0, figure=1.0, threshold=0.5, since=0)
    tracker.log_alarms([alarm])
    tracker.add_failure(GameFailure(spec=game.spec, error=HOSTILE, traceback=HOSTILE))
    tracker.end_update(0)
    tracker.finish(HOSTILE)
    return tracker, game


@every_row("width, height", (80, 24), (120, 40), (160, 50))
def test_terminal_output_has_no_control_characters(tmp_path, width, height):
    tracker, _ = hostile_run(tmp_path)
    assert not CONTROL & set(printed(tracker)) and "\\u001b]0;owned" in printed(tracker)
    file = io.StringIO()
    console = Console(file=file, width=width, height=height, force_terminal=True, color_system=None)
    console.print(Dashboard(tracker.view), height=height)
    assert not CONTROL & set(file.getvalue()) and "\\u001b" in file.getvalue()
    assert {len(line) for line in file.getvalue().splitlines()} == {width}
    assert not CONTROL & set(screenshot(tracker.view))


def test_records_and_logs_keep_hostile_text_escaped(tmp_path):
    tracker, game = hostile_run(tmp_path)
    (path,) = (tmp_path / "games").glob("*.jsonl")
    assert not CONTROL & set(path.read_text(encoding="utf-8"))
    (row,) = lines(path)
    assert row["turns"][1]["text"] == game.turns[1].answer.text
    row.pop("format")
    assert read_game("here", row).turns == game.turns
    record = logging.LogRecord("unstable", logging.ERROR, "", 0, "%s failed", (HOSTILE,), None)
    line = Escaping("%(message)s").format(record)
    assert not CONTROL & set(line) and line.startswith("\\u001b]0;owned\\u0007")


def test_an_error_is_one_line_of_bounded_length(monkeypatch, capsys):
    def fail(_):
        raise ConfigError(f"games.0.env = {HOSTILE}\n" + "x" * 5000)

    monkeypatch.setattr("unstable.cli.run", fail)
    with pytest.raises(SystemExit):
        cli.main()
    shown = capsys.readouterr().err
    assert not CONTROL & set(shown) and shown.count("\n") == 1 and len(shown) < 1100


def long_winded(observation):
    return "[Accept] " + "a" * (MAX_CHARACTERS + 100) + "\ud800"


async def test_long_action_is_cut_and_counted():
    env = GameConfig(env="SimpleNegotiation-v0")
    seats = tuple(SeatSpec(player=PlayerId("bot"), temperature=1.0) for _ in range(2))
    spec = GameSpec(game_id=0, purpose="train", env=env.key, seed=0, seats=seats)
    bot = PythonPlayer(f"{__name__}:long_winded")
    result = await play_game(spec, env, [bot, bot], run_seed=0)
    turn = result.turns[0]
    assert len(turn.answer.action) == len(turn.answer.text) == MAX_CHARACTERS
    assert turn.answer.cut_characters >= 110 and len(turn.answer.observation) < 10_000
    assert max(len(e.answer.observation) for e in result.turns) < MAX_EVENTS + 2 * MAX_CHARACTERS
    game_body(result)


class Loud(textarena.Env):
    """Says more at each step than anybody can read."""

    def reset(self, num_players, seed=None):
        self.state = textarena.TwoPlayerState(num_players=num_players, seed=seed)
        self.state.reset(game_state={}, player_prompt_function=lambda **_: "r" * 10**6)

    def step(self, action):
        for letter in "abcdefg":
            self.state.add_observation(
                message=letter * 10**6, observation_type=textarena.ObservationType.GAME_MESSAGE
            )
        return self.state.step()


def test_long_game_messages_are_cut_and_counted(tmp_path):
    game = Game(GameConfig(env=f"{__name__}:Loud"), 0)
    assert game.observe().rules == "r" * MAX_CHARACTERS
    assert game.take_cut() == 2 * (10**6 - MAX_CHARACTERS)
    game.step("[1]")
    assert game.observe().events == ["g" * MAX_CHARACTERS]
    assert game.take_cut() > 13 * 10**6 and game.take_cut() == 0
    tracker, result = make_tracker(tmp_path, make_config()), make_game(0)
    result.turns = [answering(turn, cut_characters=5) for turn in result.turns]
    take_in(tracker, result, make_trajectories(result), 0)
    tracker.end_update(0)
    assert lines(tmp_path / "metrics.jsonl")[0]["collect/cut_characters"] == 15
