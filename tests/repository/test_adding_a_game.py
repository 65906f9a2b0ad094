"""docs/adding_a_game.md, tried as it is written."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from unstable.commands.prepare import check_games
from unstable.config import GameConfig, parse
from unstable.games.game import Game

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs/adding_a_game.md").read_text(encoding="utf-8")
START = "from unstable.cli import main; main()"
FILES = re.findall(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the page's files."""
    for name, text in FILES:
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("my_games", None)
    yield tmp_path
    sys.modules.pop("my_games", None)


def test_the_config_is_three_lines(folder: Path) -> None:
    assert [name for name, _ in FILES] == ["my_games.py", "my.yaml"]
    assert len(dict(FILES)["my.yaml"].splitlines()) == 3


def test_the_game_is_accepted_and_plays_to_its_end(folder: Path) -> None:
    config = parse(yaml.safe_load((folder / "my.yaml").read_text(encoding="utf-8")))
    check_games(config)
    game = Game(config.games[0], seed=3)
    while not game.done:
        sticks = int(game.observe().board.split()[0])
        game.step("[1]" if sticks % 4 in (1, 2) else "[3]" if sticks % 4 == 0 else "[2]")
    assert sorted(game.outcomes) == [-1.0, 1.0] and game.forfeit is None
    assert "took the last one" in game.reason


def test_the_pages_seating_gives_each_role_its_number() -> None:
    (text,) = re.findall(r"^```python\n(def seating.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"SpyGame": SimpleNamespace}
    exec(text, names)
    roles = ["witness", "spy", "guard's friend", "guard"]
    assert names["seating"](SimpleNamespace(roles=roles)) == [1, 3, 2, 0]
    fields = re.findall(r"^\| `(\w+): ", PAGE, re.MULTILINE)
    assert {"teams", "seating"} <= set(fields) <= set(GameConfig.model_fields)


@pytest.mark.slow
def test_the_game_trains(folder: Path, tiny_folder: Path) -> None:
    options = {
        "--model.name": str(tiny_folder),
        "--model.init": "fresh",
        "--model.dtype": "float32",
        "--model.adapter.rank": "4",
        "--sampling.max_tokens": "6",
        "--actors.num": "1",
        "--groups.size": "2",
        "--learner.batch_size": "16",
        "--learner.micro_batch_size": "8",
        "--eval.games": "2",
        "--loop.steps": "1",
        "--tracking.run_dir": "run",
        "--tracking.dashboard": "off",
    }
    words = [word for pair in options.items() for word in pair]
    done = subprocess.run(
        [sys.executable, "-c", START, "train", "--config", "my.yaml", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "run/checkpoints/000001").is_dir()
