"""The files and commands of docs/adding_a_game.md work unchanged."""

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.helpers.cli import run_locally
from tests.helpers.mistakes import refused
from tests.helpers.pages import commands
from unstable.commands.prepare import check_games
from unstable.config import ConfigError, GameConfig, load, parse
from unstable.config.plugins import registered
from unstable.games.bridges import bridged_class
from unstable.games.check import check_game
from unstable.games.game import Game
from unstable.games.services import game_questions, programs, prompt_style
from unstable.records.reading import read_rows
from unstable.solving.best_response import assess
from unstable.solving.tree import grow

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/adding_a_game.md").read_text(encoding="utf-8")
MODULES = ("my_games", "my_cards")
FILES = re.findall(r"^```(?:python|toml|yaml)\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a folder with the page's files."""
    for name, text in FILES:
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for name in MODULES:
        sys.modules.pop(name, None)
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)


def test_page_shows_all_files_and_a_config_of_three_lines(folder: Path) -> None:
    own = ["my_games.py", "my.yaml", "sticks.yaml", "pyproject.toml", "unstable_sticks.py"]
    assert [name for name, _ in FILES] == [*own, "my_cards.py", "brag.yaml"]
    assert len(dict(FILES)["my.yaml"].splitlines()) == 3


def test_documented_game_passes_checks_and_plays_to_its_end(folder: Path) -> None:
    config = parse(yaml.safe_load((folder / "my.yaml").read_text(encoding="utf-8")))
    check_games(config)
    game = Game(config.games[0], seed=3)
    while not game.done:
        sticks = int(game.observe().board.split()[0])
        game.step("[1]" if sticks % 4 in (1, 2) else "[3]" if sticks % 4 == 0 else "[2]")
    assert sorted(game.outcomes) == [-1.0, 1.0] and game.forfeit is None
    assert "took the last one" in game.reason


def test_three_seat_example_hides_hands_and_pays_one_seat() -> None:
    (command,) = (words for words in commands(PAGE) if "examples.last_trick:LastTrick" in words)
    options = dict(zip(command[1::2], command[2::2], strict=True))
    names = ("games.0.env", "games.0.seats", "games.0.legal_moves")
    config = load("default", {name: yaml.safe_load(options[f"--{name}"]) for name in names})
    check_games(config)
    game, dealt = Game(config.games[0], seed=3), []
    while not game.done:
        own = game.legal_moves()
        shown = game.observe().board
        assert shown.endswith(f"Your hand: {' '.join(own)}.") and shown.count("[") == len(own)
        dealt += own if len(own) == 3 else []
        game.step(own[-1])
    assert sorted(dealt) == [f"[{card}]" for card in range(9)]
    assert sorted(game.outcomes) == [-1.0, -1.0, 1.0] and "has the last trick" in game.reason
    game = Game(config.games[0], seed=3)
    game.step("[0]")
    assert game.forfeit == 0


def test_installed_package_registers_its_game(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only entry points register it: pip installs the package into a folder of the path."""
    installed = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    offline = ["--no-deps", "--no-build-isolation", "--target", str(installed), str(folder)]
    game = GameConfig(env="sticks:9")
    registered.cache_clear()
    refused("sticks:9", check_game, game)
    subprocess.run([*pip, *offline], check=True, env=os.environ | {"PYTHONPATH": ""})
    monkeypatch.syspath_prepend(installed)
    registered.cache_clear()
    try:
        check_game(game)
        played = Game(game, seed=0)
        assert played.observe().board == "9 sticks are left." and programs(game)[0] == "rules"
        while not played.done:
            moves = played.rule_moves() if played.seat else played.legal_moves()
            played.step([*moves][0])
        assert played.outcomes == [-1.0, 1.0]
        with pytest.raises(ConfigError, match="'sticks:many': unstable_sticks:env.*ValueError"):
            check_game(GameConfig(env="sticks:many"))
    finally:
        registered.cache_clear()
        bridged_class.cache_clear()


def test_documented_seating_numbers_each_role() -> None:
    (text,) = re.findall(r"^```python\n(def seating.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"SpyGame": SimpleNamespace}
    exec(text, names)
    roles = ["witness", "spy", "guard's friend", "guard"]
    assert names["seating"](SimpleNamespace(roles=roles)) == [1, 3, 2, 0]
    fields = re.findall(r"^\| `(\w+): ", PAGE, re.MULTILINE)
    assert {"teams", "seating"} <= set(fields) <= set(GameConfig.model_fields)


@pytest.mark.tables("learning", 3)
@pytest.mark.slow
def test_documented_config_learns_the_game(folder: Path) -> None:
    """The model makes no legal move at the start; after a warm start it beats random."""
    words = ["--eval.every", "60", "--run_dir", "run"]
    run_in(folder, "train", "--config", "sticks.yaml", *words)
    first, *_, last = read_rows(folder / "run/metrics.jsonl")
    of = "eval/my_games:Sticks/random/sampled"
    assert first[f"{of}/legal_moves"] > 0.9 and last[f"{of}/legal_moves"] > 0.9
    assert last[f"{of}/gain_low"] > 0


def brag(folder: Path) -> GameConfig:
    config = parse(yaml.safe_load((folder / "brag.yaml").read_text(encoding="utf-8")))
    check_games(config)
    return config.games[0]


def test_card_game_has_a_tree_and_questions(folder: Path) -> None:
    game = brag(folder)
    assert prompt_style(game).name == "compact" and len(game_questions(game)) == 3
    for question in game_questions(game):
        asked, answers = question.draw(random.Random(1))
        assert asked and len(answers) == 1
    tree = grow(game)
    assert (len(tree.decisions), tree.most) == (10, 3.0)
    # Nodes per deal: seat 0's decision, its check, seat 1's decision, two ends.
    assert tree.nodes == 1 + 20 * 5
    uniform = {node.key: dict.fromkeys(node.actions, 0.5) for node in tree.decisions}
    found = assess(tree, uniform, forfeits=True)
    # Seat 0 gains 1/4 on average: seat 1 folds in a quarter of games; showdowns cancel.
    assert found.values == pytest.approx((0.25, -0.25)) and found.exploitability > 0


def run_in(folder: Path, *words: str) -> str:
    done = run_locally(folder, *words)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_documented_card_game_commands_run(folder: Path) -> None:
    """Run the page's commands with small options."""
    smaller = {
        "world": ["--world.steps", "20", "--world.games", "50", "--world.score_games", "0"],
        "train": ["--learner.batch_size", "32", "--actors.num", "1"],
    }
    less = {"64:128": "0:2", "128": "2"}
    smaller["train"] += ["--learner.micro_batch_size", "32", "--tracking.dashboard", "off"]
    said = []
    for command in commands(PAGE.partition("## Example: a card game")[2]):
        words = [less.get(word, word) for word in command]
        said.append(run_in(folder, *words, *smaller.get(words[0], [])))
    world, _, table, average, policy = said
    assert "20 steps take about" in world and (folder / "brag_base/config.json").exists()
    figure = r"Brag: ([0-9. to]+) ·"
    assert "exploitability of version 2 · Brag" in table
    assert "exploitability of the average of 3 versions, 0 to 2" in average
    assert re.findall(figure, policy) == re.findall(figure, table), "read back, it is the same"
