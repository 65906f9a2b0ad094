"""README's config, and the commands of the pages that begin with one, are real."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.machine_helpers import machine
from unstable.cli import run
from unstable.commands.prepare import Resolved, check_games
from unstable.config import RunConfig, load, parse
from unstable.engines.needs import NEEDS
from unstable.planning.plan import plan

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
MY_GAMES = """
import textarena as ta


class RaceTo21(ta.Env):
    def reset(self, num_players, seed=None):
        self.state = ta.TwoPlayerState(num_players=num_players, seed=None)
        self.state.reset(game_state={}, player_prompt_function=lambda player_id, game_state: "Go.")

    def step(self, action):
        return self.state.step()


def legal(env):
    return ["[1]"]


class Bot:
    def __call__(self, observation):
        return "[1]"
"""


SCRIPTS = {"run.sh": ["train"], "run_24gb.sh": ["train", "--config", "qwen3_24gb"]}
"""What they have `unstable` do, besides their arguments."""


def blocks(language: str, page: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def commands(page: str) -> list[list[str]]:
    """Arguments of `unstable` in the page's lines of shell."""
    found = []
    for line in "\n".join(blocks("bash", page)).splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["bash"] and words[1] in SCRIPTS:
            found.append(SCRIPTS[words[1]] + words[2:])
        elif words and Path(words[0]).name == "unstable":
            found.append(words[1:])
    return found


def test_the_config_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_games.py").write_text(MY_GAMES)
    monkeypatch.syspath_prepend(tmp_path)
    (text,) = blocks("yaml")
    config = parse(yaml.safe_load(text))
    check_games(config)
    assert config.eval.opponents == ["random", "base"]


@pytest.mark.parametrize(
    ("name", "least"), [("README.md", 14), ("docs/sft.md", 5), ("docs/play.md", 10)]
)
def test_the_commands_are_understood(
    name: str, least: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Any] = []

    def begin(*arguments: Any, **_: Any) -> int:
        begun.append(arguments)
        return 0

    def begin_prepare(config: RunConfig) -> Resolved:
        begin(config)
        here = machine()
        return Resolved(config, plan(config, [here], NEEDS), here)

    places = "runtime.train.train", "runtime.sft.sft", "runtime.sft.resume"
    for place in (
        *places,
        "runtime.evaluate.evaluate",
        "runtime.exploit.measure",
        "runtime.resume.resume",
        "runtime.resume.fork",
        "runtime.report.report",
        "runtime.watch.watch",
        "runtime.runs.runs",
        "runtime.export.export",
        "runtime.interactive.play.play",
        "runtime.interactive.found.find",
        "planning.doctor.examine",
        "runtime.diagnosis.diagnose",
    ):
        monkeypatch.setattr(f"unstable.{place}", begin)
    for follows in ("audit", "explore"):  # with what was found
        monkeypatch.setattr(f"unstable.commands.audit.replay.{follows}", lambda *_: True)
    monkeypatch.setattr("unstable.commands.prepare.prepare", begin_prepare)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.yaml").write_text(blocks("yaml")[0])
    given = commands((ROOT / name).read_text(encoding="utf-8"))
    for arguments in given:
        assert run(arguments) == 0, arguments
    helped = sum("--help" in arguments for arguments in given)
    assert len(begun) == len(given) - helped >= least
    for first, *rest in begun:
        if isinstance(first, list):  # the runs of a report
            (first,) = first
        if isinstance(first, Path):  # a run's folder, and what eval and exploit are given
            assert str(first) == "outputs/<run>"
        if first is None or isinstance(first, Path):  # `play` needs no run
            options = rest[-1] if rest and isinstance(rest[-1], dict) else {}
            first = load("default", options)
        assert isinstance(first, RunConfig)


def test_files_that_it_names_are_there() -> None:
    for path in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"`((?:unstable|docs|bench|tests)/[\w./]*)`", README):
        assert (ROOT / path).exists(), path
