"""Test `games.N.info`: custom metadata works like the catalog's, and only for its own game."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import textarena

from tests.helpers.games import COUNT_UP
from tests.helpers.liars import Liars
from tests.helpers.mistakes import refused
from tests.helpers.rows import every_row
from unstable.commands.prepare import check_games
from unstable.config import GameConfig, RunConfig
from unstable.games import Compact, Expert, GameInfo, Question, SmallTree
from unstable.games.catalog.table import GAMES, info_of
from unstable.games.check import check_game
from unstable.games.game import Game
from unstable.games.services import (
    can_be_solved,
    game_info,
    game_questions,
    lists_legal_moves,
    programs,
    prompt_style,
    why_not_solved,
)
from unstable.solving.tree import grow

PAGE = Path(__file__).parent.parent.parent / "docs/adding_a_game.md"


def left(env) -> list[str]:
    return [f"[{step}]" for step in (1, 2, 3)]


def position(env) -> str:
    return f"{env.state.game_state['total']}: 1 2 3"


INFO = GameInfo(
    name="Count",
    legal_moves=left,
    expert=Expert(lambda env: {"[3]": 1.0}, lambda env, action: "The most."),
    compact=Compact("Count up. Answer with 1, 2 or 3.", position),
    questions=(Question("What is one more?", lambda rng: ("1", ["2"])),),
)
POKER = GameInfo(name="Dice", small_tree=SmallTree(is_open=False), compact=INFO.compact)
WRONG = INFO.expert
ASTRAY = GameInfo(compact=Compact("Count.", lambda env: env.nothing))
SILENT = GameInfo(questions=(Question("What?", lambda rng: ("1", [])),))
COUNT = GameConfig(env=COUNT_UP, info=f"{__name__}:INFO")


def test_custom_game_info_works_like_catalog_info() -> None:
    check_game(COUNT)
    assert game_info(COUNT) is INFO and lists_legal_moves(COUNT)
    assert programs(COUNT) == ["expert", "random"] and prompt_style(COUNT).name == "compact"
    assert game_questions(COUNT) == INFO.questions
    game = Game(COUNT, seed=0)
    assert game.legal_moves() == ["[1]", "[2]", "[3]"] and game.expert_moves() == {"[3]": 1.0}
    assert game.observe().position.endswith(": 1 2 3")
    assert game_info(GameConfig(env=COUNT_UP)) == GameInfo(), "no info without games.N.info"


def test_custom_game_info_replaces_env_info() -> None:
    config = GameConfig(env=f"{Liars.__module__}:Liars")
    own = config.model_copy(update={"info": f"{__name__}:POKER", "prompt": "answer"})
    assert can_be_solved(own) and game_info(own) is POKER
    assert game_info(config) is Liars.info is not POKER
    assert grow(own).nodes == grow(config).nodes


@every_row(
    "info, words",
    ("WRONG", r"games.0.info = '.*:WRONG': Expert instead of GameInfo; name a GameInfo"),
    ("NOBODY", r"games.0.info = '.*:NOBODY': .* has no NOBODY"),
    ("ASTRAY", r"games.0.info = '.*:ASTRAY': its compact.position raises AttributeError"),
    ("SILENT", r"games.0.info = '.*:SILENT': its questions.0.draw returned \[\]"),
)
def test_invalid_game_info_is_rejected_in_one_line(info: str, words: str) -> None:
    config = RunConfig(games=[COUNT.model_copy(update={"info": f"{__name__}:{info}"})])
    refused(words, check_games, config)


def test_catalog_info_is_not_matched_by_class_name_only() -> None:
    for info in GAMES:
        cls = type(info.env, (textarena.Env,), {"__module__": "my_games"})
        assert info_of(cls) == GameInfo(), info.env


def test_documented_game_plays_under_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = re.findall(r"^```python\n# my_games.py\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    for name in ("NimEnv", "LiarsDiceEnv", "Leduc", "KuhnPoker"):
        module = ModuleType("my_named_games")
        module.__dict__["__name__"] = "my_named_games"
        exec(text.replace("Sticks", name), module.__dict__)
        monkeypatch.setitem(sys.modules, "my_named_games", module)
        config = GameConfig(env=f"my_named_games:{name}", legal_moves="my_named_games:legal")
        check_game(config)
        check_game(GameConfig(env=f"my_named_games:{name}"))
        assert prompt_style(config).name == "answer"
        assert "cannot be solved exactly; use one of" in str(why_not_solved(config))
