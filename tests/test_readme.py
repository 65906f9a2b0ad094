"""README's config and commands are real."""

import re
from pathlib import Path

import pytest
import yaml

from unstable.cli import SHORT_FORMS, parse_options
from unstable.config import RunConfig, load, parse
from unstable.games.catalog import check_game, check_opponent

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


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_config_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_games.py").write_text(MY_GAMES)
    monkeypatch.syspath_prepend(tmp_path)
    (text,) = blocks("yaml")
    config = parse(yaml.safe_load(text))
    for game in config.games:
        check_game(game)
        for opponent in config.opponents.fixed:
            check_opponent(opponent, game)
    assert config.eval.opponents == ["random", "base"]


def test_the_commands_have_options_that_exist() -> None:
    commands = [
        line.partition("#")[0].split() for text in blocks("bash") for line in text.split("\n")
    ]
    given = [words[2:] for words in commands if words[1:2] == ["run.sh"] and "--help" not in words]
    assert len(given) >= 3
    for arguments in given:
        options = parse_options(arguments, SHORT_FORMS)
        options.pop("config", None)
        assert isinstance(load("default", options), RunConfig)


def test_files_that_it_names_are_there() -> None:
    for path in re.findall(r"\]\((?!http)([^)]+)\)", README):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"`((?:unstable|docs|bench|tests)/[\w./]*)`", README):
        assert (ROOT / path).exists(), path
