"""What becomes of a person's game when a bot or the env ends, crashes or stops the process."""

import os
import re
import signal
import termios
import threading
import time
from pathlib import Path

import pytest
import yaml

from tests.helpers.screens import PseudoTerminal
from tests.helpers.terminals import typed
from unstable.cli import run
from unstable.commands.play import supervised as module
from unstable.commands.play.supervised import Notes, supervised
from unstable.commands.session import Terminated
from unstable.config import ConfigError, RunFailedError
from unstable.records.files import read_lines
from unstable.records.folder import RunFolder
from unstable.records.games import read_game
from unstable.types import GameResult

TARGETS = "tests.helpers.crashing"


def config_of(folder: Path, bot: str, env: str = "TicTacToe-v0") -> str:
    config = {
        "games": [{"env": env, "turn_timeout": 30.0}],
        "opponents": {"fixed": [{"kind": "python", "name": "bot", "target": f"{TARGETS}:{bot}"}]},
    }
    if bot == "blocks":
        config["games"][0]["turn_timeout"] = 3.0  # type: ignore[index]
    path = folder / "crashing.yaml"
    path.write_text(yaml.safe_dump(config))
    return str(path)


def saved(root: Path) -> GameResult:
    (file,) = RunFolder(root).game_files()
    ((place, row),) = read_lines(file.path)
    return read_game(place, row)


@pytest.mark.parametrize(
    ("bot", "line"),
    [
        ("exits", r"bot \(seat 1\) ended its process with exit code 3"),
        ("crashes", r"bot \(seat 1\) ended its process by SIGSEGV"),
        ("closes", r"bot \(seat 1\) ended its process with exit code 1"),
        ("blocks", r"bot \(seat 1\) was not done in games.turn_timeout = 3 s, and its process"),
    ],
)
def test_a_bot_that_ends_its_process_costs_no_turn_that_was_played(
    bot: str,
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments = ["play", "--config", config_of(tmp_path, bot), "--opponent", "bot"]
    with typed("4\n"), pytest.raises(RunFailedError, match=line):
        run([*arguments, "--run_dir", "my game"])
    shown = capfd.readouterr()
    assert "saved: my game\nto see it: unstable report 'my game'" in shown.out
    assert "Traceback" not in shown.err
    result = saved(tmp_path / "my game")
    assert [turn.answer.action for turn in result.turns] == ["[4]"]
    assert result.truncated and re.match(line, result.reason)
    assert run(["replay", "my game", "0"]) == 0  # what was played follows from the seed


def test_an_env_that_ends_its_process_is_named_and_what_was_played_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    env = f"{TARGETS}:Crashing"
    config = config_of(tmp_path, "arms", env)
    line = f"^{env} ended its process with exit code 5$"
    with typed("4\n8\n"), pytest.raises(RunFailedError, match=line):
        run(["play", "--config", config, "--opponent", "bot", "--run_dir", "game"])
    assert [turn.answer.action for turn in saved(tmp_path / "game").turns] == ["[4]"]
    with pytest.raises(RunFailedError, match=line):  # it is still armed
        run(["replay", "game", "0"])
    with pytest.raises(ConfigError, match="ended its process with exit code 5 as it was tried"):
        run(["play", "--config", config, "--opponent", "bot"])
    assert not (tmp_path / "outputs").exists()


def test_the_terminal_is_as_it_was_and_the_exit_code_says_that_it_failed(tmp_path: Path) -> None:
    arguments = ["play", "--config", config_of(tmp_path, "breaks_terminal"), "--opponent", "bot"]
    with PseudoTerminal(tmp_path, 80, 24, *arguments) as screen:
        screen.until("your action> ")
        before = termios.tcgetattr(screen.descriptor)
        screen.says("4\n", r"error: bot \(seat 1\) ended its process with exit code 3")
        assert termios.tcgetattr(screen.descriptor) == before
        assert screen.end() == 1
    assert screen.text.count("error: ") == 1 and "Traceback" not in screen.text


def test_what_is_returned_raised_and_told_comes_through() -> None:
    heard: list[object] = []

    def work(notes: Notes) -> str:
        notes.tell(1)
        notes.tell("two")
        return "done"

    assert supervised(work, heard.append) == "done" and heard == [1, "two"]
    for error in (ConfigError("a mistake"), RunFailedError("a fault"), KeyboardInterrupt("Ctrl-C")):

        def fail(notes: Notes, error: BaseException = error) -> None:
            raise error

        with pytest.raises(type(error), match=str(error)):
            supervised(fail)


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)]
)
def test_what_heeds_no_interrupt_is_ended_all_the_same(
    number: signal.Signals, raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "GRACE_S", 0.3)
    begun = threading.Event()

    def work(notes: Notes) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        notes.tell(os.getpid())
        while True:
            time.sleep(60)

    def interrupt() -> None:
        assert begun.wait(60)
        os.kill(os.getpid(), number)

    pids: list[int] = []

    def hear(pid: int) -> None:
        pids.append(pid)
        begun.set()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(raised):
        supervised(work, hear)
    thread.join()
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)
