"""`unstable play` as a person at a terminal meets it, and what it leaves."""

import math
import re
from pathlib import Path

import psutil
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from tests.helpers.endpoint import Server, opponent, says
from tests.helpers.mistakes import line_of
from tests.helpers.rows import every_row
from tests.helpers.screens import PseudoTerminal, Screen
from tests.helpers.terminals import listing, make_run, saved, typed
from unstable.cli import run
from unstable.config import ConfigError, ModelConfig, RunFailedError, escape_control, load
from unstable.records.folder import RunFolder
from unstable.report.report import write_report
from unstable.tracking.text import wrapped
from unstable.types import GameResult, PlayerId

PERSON = PlayerId("person")


@pytest.fixture(scope="module")
def made(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return make_run(tmp_path_factory.mktemp("project") / "run", tiny_folder)


def legal(text: str) -> list[str]:
    return re.findall(r"\[\d\]", text.partition("Legal actions:")[2])


def test_person_plays_a_version_to_the_end(made: RunFolder, tmp_path: Path) -> None:
    """At a wide terminal, which then becomes one of 80 columns."""
    before = listing(made.root)
    arguments = ["play", f"{made.root}@1", "--seed", "5", "--seat", "1"]
    with Screen(tmp_path, 200, 60, *arguments) as screen:
        begin = screen.until("your action> ")
        assert 80 < max(map(cell_len, begin.splitlines())) <= 200
        screen.resize(80, 24)
        assert "TicTacToe-v0, seed 5: run:1 at seat 0, you at seat 1." in begin
        assert "You are Player 1 in Tic Tac Toe" in begin
        assert re.search(r"run:1 \(seat 0\) plays \[\d\]", begin)  # the board shows all

        helped = screen.says("?\n")
        assert "!hint   a solver's value of each legal action, if available" in helped
        hints = screen.says("!hint\n")
        assert "Outcome of each action under perfect play:" in hints
        action_values = re.findall(r"  (\[\d\])  ([+-]1|0)\r\n", hints)
        assert sorted(action for action, _ in action_values) == legal(helped)
        assert [int(w) for _, w in action_values] == sorted(
            (int(w) for _, w in action_values), reverse=True
        )
        why = screen.says("!why\n")
        assert re.search(r"run:1 \(seat 0\) answered", why) and "[" in why
        assert "in its prompt: 012345678\r\n" in why
        chances = screen.says("!probs\n")
        assert "run:1 in its last turn, at temperature 1:" in chances
        shares = [float(share) for share in re.findall(r"  ([\d.]+) %", chances)]
        assert len(shares) == 9 + 1 and sum(shares) == pytest.approx(100, abs=1)
        assert screen.says("\n") == "\r\nyour action> "
        assert "Unknown command !never; ? lists them." in screen.says("!never\n")
        assert "not a listed legal action" in screen.says("[9]\n")

        answer = helped
        while "The game is over" not in answer:
            action = legal(screen.says("?\n"))[-1].strip("[]")  # brackets may be left out
            answer = screen.says(
                f"{action}\n", "your action> |The game is over[^$]*unstable report"
            )
        assert screen.end() == 0
    folder, result = saved(tmp_path)
    assert f"saved: outputs/{folder.root.name}" in screen.text
    assert all(cell_len(line) <= 80 for line in screen.text[len(begin) :].splitlines())
    assert [seat.player.name for seat in result.spec.seats] == ["run:1", "person"]
    assert {turn.player for turn in result.turns if turn.seat == 1} == {PERSON}
    assert all(turn.answer.sampled for turn in result.turns if turn.seat == 0)
    assert not result.truncated and result.spec.purpose == "eval"
    assert listing(made.root) == before  # nothing was written into the run
    assert write_report([folder.root], tmp_path / "page.html", "") > 1000
    assert "Recorded games." in (tmp_path / "page.html").read_text()
    assert load(str(folder.config)).games[0].env == "TicTacToe-v0"  # it runs again


def is_left(_: RunFolder, result: GameResult) -> bool:
    """Return True if the person left the game after one turn of each player."""
    moves = [turn.answer.action for turn in result.turns]
    ending = (result.reason, result.truncated, moves[:1], len(moves))
    return ending == ("the person has left", True, ["[4]"], 2)


@pytest.mark.parametrize("rest", ["!quit\n", ""], ids=["quit command", "end of input"])
def test_abandoned_game_is_saved(rest: str, here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with typed(f"4\n{rest}"):
        assert run(["play", "--opponent", "random", "--seed", "1"]) == 0
    assert "saved: outputs" in capfd.readouterr().out and is_left(*saved(here))


def test_player_text_is_escaped_and_ctrl_c_leaves_the_game(tmp_path: Path) -> None:
    config = tmp_path / "hostile.yaml"
    config.write_text(
        "games: [{env: TicTacToe-v0, invalid_moves: {allowed: 1}}]\n"
        "opponents: {fixed: [{kind: python, name: bot, "
        "target: 'tests.helpers.hostile:takes_over'}]}\n"
    )
    arguments = ["play", "--config", str(config), "--opponent", "bot"]
    with PseudoTerminal(tmp_path, 80, 24, *arguments) as screen:
        screen.until("your action> ")
        played = screen.says("4\n")
        assert r"bot (seat 1) plays \u001b]0;owned\u0007\u001b[2J[0]" in played
        assert "control characters; type it again" in screen.says("\x1b[A\n")
        assert r"\u001b[2J" in screen.says("!why\n")
        assert all(cell_len(line) <= 80 for line in screen.lines)
        screen.says("\x03", "saved: outputs")
        assert screen.end() == 130
    assert "\x1b" not in screen.text and "Traceback" not in screen.text
    assert is_left(*saved(tmp_path))


def test_ctrl_c_ends_the_wait_for_another_player(tmp_path: Path) -> None:
    config = tmp_path / "slow.yaml"
    config.write_text(
        "opponents: {fixed: [{kind: python, name: bot, "
        "target: 'tests.helpers.hostile:never_moves'}]}\n"
    )
    with PseudoTerminal(
        tmp_path, 80, 24, "play", "--config", str(config), "--opponent", "bot"
    ) as screen:
        screen.until("your action> ")
        screen.says("4\n", r"bot \(seat 1\) is thinking \.\.\.")
        screen.says("\x03", "saved: outputs")
        assert screen.end() == 130
    assert [turn.answer.action for turn in saved(tmp_path)[1].turns] == ["[4]"]


def test_reasoning_model_shows_token_probabilities(
    made: RunFolder, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    game = ["--game", "IteratedPrisonersDilemma-v0", "--seat", "1"]  # starts with free talk
    fields = ["--games.0.prompt", "think", "--eval.constrained", "false", "--seed", "2"]
    with typed("!why\n!probs\n"):
        assert run(["play", str(made.root), *game, *fields]) == 0
    shown = capfd.readouterr().out
    _, result = saved(here)
    (turn,) = [turn for turn in result.turns if turn.answer.sampled is not None][-1:]
    assert turn.answer.sampled is not None
    tokens = re.findall(
        r"^  ('.*'|\".*\")  ([\d.]+) %$", shown.partition("!probs")[0], re.MULTILINE
    )
    assert "run:1 in its last turn, sampled tokens:" in shown
    assert "(no action found)" in shown  # random tokens
    wanted = [100 * math.exp(logprob) for logprob in turn.answer.sampled.logprobs]
    assert [float(share) for _, share in tokens] == pytest.approx(wanted, abs=0.06)


def test_game_is_saved_when_an_endpoint_reaches_its_cap(
    server: Server, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    server.replies = [says("I take the corner: [0]"), says("[1]")]
    fixed = [opponent(server, max_calls=1).model_dump()]
    config = {"opponents": {"fixed": fixed}, "games": [{"env": "TicTacToe-v0"}]}
    (here / "remote.yaml").write_text(yaml.safe_dump(config))
    with typed("4\n!why\n8\n"), pytest.raises(RunFailedError, match="max_calls = 1 of opponent"):
        run(["play", "--config", "remote.yaml", "--opponent", "remote", "--seed", "1"])
    shown = capfd.readouterr().out
    assert "remote (seat 1) answered:\nI take the corner: [0]\nIts action: [0]" in shown
    folder, result = saved(here)
    assert "The game is over: remote failed: max_calls" in shown
    assert [turn.answer.action for turn in result.turns] == ["[4]", "[0]", "[8]"]
    assert (folder.root / "endpoints/remote.json").is_file()
    assert "SpentError" in (folder.root / "logs/play.log").read_text()


def test_hint_shows_an_equilibrium(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    game = "unstable.games.catalog.kuhn:KuhnPoker"
    with typed("!why\n!probs\n!hint\n?\ncheck\n!probs\n"):
        assert run(["play", "--game", game, "--seed", "3", "--seat", "1"]) == 0
    shown = capfd.readouterr().out
    assert shown.count("No other player has moved yet.") == 2
    assert re.search(r"An equilibrium plays:\n  \[\w+\]  \d+ %", shown)
    assert "expert (seat 0) has moved" in shown
    assert "expert is not a local model and has no probabilities." in shown or "is over" in shown
    assert saved(here)[1].spec.env == game


def test_long_list_of_legal_actions_is_cut(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with typed("?\n"):
        assert run(["play", "--game", "Codenames-v0", "--opponent", "random", "--seed", "3"]) == 0
    listed = capfd.readouterr().out.partition("Legal actions: ")[2]
    assert 50 <= len(re.findall(r"\[\w+\s\d\]", listed)) <= 60
    assert re.search(r"and [\d,]+\s+more", listed)


def test_opponent_takes_all_other_seats(
    here: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ["play", "--game", "ThreePlayerTicTacToe-v0", "--opponent", "rules", "--seat", "2"]
    with typed("!hint\n?\n?"):
        assert run(arguments) == 0
    shown = capfd.readouterr().out
    assert "rules at seat 0, rules at seat 1, you at seat 2." in " ".join(shown.split())
    assert "No solver for ThreePlayerTicTacToe-v0." in shown
    folder, result = saved(here)
    assert [seat.player.name for seat in result.spec.seats] == ["rules", "rules", "person"]
    assert len(result.turns) == 2


def test_single_player_needs_no_opponent(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with typed("!why\n[1 2 3 4]\n"):
        assert run(["play", "--game", "Mastermind-v0", "--seed", "2"]) == 0  # it has no expert
    assert "No other player has moved yet." in capfd.readouterr().out
    _, result = saved(here)
    assert [(turn.answer.action, turn.invalid) for turn in result.turns] == [("[1 2 3 4]", False)]


MISTAKES = [
    (["nowhere"], "contains no config.yaml; give a run folder"),
    (["{run}@7"], "version = 7: checkpoint not found"),
    (["{run}@x"], "@x': invalid version; give a number"),
    (["{run}", "--game", "TicTacTo-v0"], "unknown TextArena id; did you mean 'TicTacToe-v0'?"),
    (["{run}", "--seat", "2"], "--seat = 2: TicTacToe-v0 has seats 0 to 1; choose one of"),
    (["{run}", "--seat", "first"], "--seat = 'first': input should be a valid integer"),
    (
        ["{run}", "--temperature", "-1"],
        "--temperature = '-1': input should be greater than or equal to 0",
    ),
    (["{run}", "--opponent", "rando"], "unknown player; did you mean 'random'?, or a RUN_DIR"),
    (["{run}", "--config", "tiny"], "--config: conflicts with RUN_DIR and its config"),
    (["--opponent", "rules"], "--opponent = 'rules' in TicTacToe-v0: it plays only"),
    (["--game", "SimpleTak-v0"], "--opponent = 'expert' in SimpleTak-v0: it plays only"),
    (["--opponent", "base", "--model", "./none"], "model.name = './none': no such folder"),
    (["--opponent", "random", "--run_dir", "{run}"], "already exists; give a new folder"),
    (["--opponent", "random", "--stake", "3"], "unknown key"),
]


@every_row("arguments, line", *MISTAKES)
def test_mistake_is_one_line(arguments: list[str], line: str, made: RunFolder, here: Path) -> None:
    words = [word.replace("{run}", str(made.root)) for word in arguments]
    assert line in line_of(run, ["play", *words])
    assert not (here / "outputs").exists()


@pytest.mark.parametrize(
    "arguments", [["play", "{run}"], ["replay", "{run}", "0", "--purpose", "train"]]
)
def test_weights_are_downloaded_before_a_model_is_loaded(
    made: RunFolder, here: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    def missing(model: ModelConfig, progress: object) -> None:
        raise ConfigError(f"{model.name} is to be downloaded")

    monkeypatch.setattr("unstable.commands.session.ready_weights", missing)
    with typed(""), pytest.raises(ConfigError, match="is to be downloaded"):
        run([word.replace("{run}", str(made.root)) for word in arguments])
    assert not any(here.glob("outputs/*"))


def test_game_against_a_scripted_player_loads_no_model(tmp_path: Path) -> None:
    with PseudoTerminal(tmp_path, 80, 24, "play", "--opponent", "expert") as screen:
        screen.until("your action> ")
        process = psutil.Process(screen.process.pid)
        maps = Path(f"/proc/{process.pid}/maps")
        if not maps.is_file():
            pytest.skip("requires /proc/PID/maps")
        loaded = maps.read_text()
        assert "libtorch" not in loaded and "numpy" in loaded
        assert process.children() == []
        screen.says("!quit\n", "nothing is saved")
        assert screen.end() == 0
    assert list((tmp_path / "outputs").iterdir()) == []  # leaves no folder


@settings(max_examples=40)
@given(st.text(max_size=200), st.integers(20, 200))
def test_wrapped_text_fits_and_has_no_control_characters(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert all(ord(letter) >= 32 and ord(letter) != 127 for line in lines for letter in line)
    assert "".join("".join(lines).split()) == "".join(escape_control(text).split())
