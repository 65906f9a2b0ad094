"""Common properties of games from other libraries, with or without these installed."""

import logging
import random
import re
import sys
from importlib.metadata import EntryPoints
from pathlib import Path

import pytest
import yaml

from tests.helpers.mistakes import refused
from tests.helpers.pages import blocks
from tests.helpers.rows import every_row
from unstable.config import ConfigError, GameConfig, parse, plugins
from unstable.config.plugins import registered
from unstable.games import bridges, services
from unstable.games.check import check_game, settled
from unstable.games.game import Game

LIBRARIES = {"open_spiel": "pyspiel", "pettingzoo": "pettingzoo", "gymnasium": "gymnasium"}
LIBRARIES |= {"kaggle": "pyspiel"}
"""Required module by prefix."""


def test_each_prefix_is_an_entry_point() -> None:
    assert {*registered("environments")} >= {*LIBRARIES, "gem"}


@every_row("prefix", *LIBRARIES)
def test_missing_library_is_rejected_in_one_line(
    prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, LIBRARIES[prefix], None)
        for name in [name for name in sys.modules if name.startswith("unstable.contrib.env")]:
            patch.delitem(sys.modules, name)
        patch.delitem(sys.modules, "unstable.games.bridges.open_spiel", raising=False)
        bridges.bridged_class.cache_clear()
        line = (
            rf"games.env = '{prefix}:some_game': a package of {prefix} is not installed \(.*"
            rf"{LIBRARIES[prefix]}.*\); run: pip install 'unstable-selfplay\[{prefix}\]'$"
        )
        refused(line, check_game, GameConfig(env=f"{prefix}:some_game"))


def test_missing_harness_is_rejected_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspiel", reason="it has no wheels for this platform")
    with monkeypatch.context() as patch:
        for name in [name for name in sys.modules if name.startswith("kaggle_environments.")]:
            patch.delitem(sys.modules, name)
        patch.setitem(sys.modules, "kaggle_environments", None)
        bridges.bridged_class.cache_clear()
        line = (
            r"games.env = 'kaggle:chess': a package of kaggle is not installed \(.*kaggle_envir.*"
            r"\); run: pip install --no-deps kaggle-environments$"
        )
        refused(line, check_game, GameConfig(env="kaggle:chess"))


def test_outdated_installation_is_rejected_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata of an earlier install, as after the update of a clone, raises a `ConfigError`."""
    monkeypatch.setattr(plugins, "entry_points", lambda group: EntryPoints())
    registered.cache_clear()
    with pytest.raises(
        ConfigError, match="^games.env = .gym.*: unst.*declares no environments.*pip install -e ."
    ):
        check_game(GameConfig(env="gymnasium:FrozenLake-v1", seats=1))
    with pytest.raises(ConfigError, match="declares no rules.*: pip install -e ."):
        services.programs(GameConfig(env="PigDice-v0"))
    registered.cache_clear()


def test_bridge_import_keeps_logging_settings() -> None:
    root = logging.getLogger()
    before = root.level, [*root.handlers]
    with bridges._logging_kept():
        root.addHandler(logging.NullHandler())
        root.setLevel(1)
    assert (root.level, root.handlers) == before


PAGE = (Path(__file__).parents[2] / "docs" / "bridges.md").read_text("utf-8")


def test_documented_texts_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("rlcard", reason="pip install -e '.[pettingzoo]'")
    (tmp_path / "my_words.py").write_text(blocks("python", PAGE)[0], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    shown = yaml.safe_load(blocks("yaml", PAGE)[0])["games"]
    games = [*map(GameConfig.model_validate, shown)]
    for game in games:
        check_game(game)
    poker, chess = (Game(game, 0) for game in games)
    assert re.match(r"card [JQK], public -, you [12], other [12]\n", poker.observe().board)
    assert {"e2e4", "g1f3"} < set(chess.legal_moves()) and len(chess.legal_moves()) == 20
    chess.step("e2e4")
    assert {"e7e5", "g8f6"} < set(chess.legal_moves())
    rng = random.Random(0)
    while not poker.done:
        poker.step(rng.choice(poker.legal_moves()))
    assert poker.stakes == 7 and abs(poker.outcomes[0]) <= 1


def test_documented_config_is_valid() -> None:
    pytest.importorskip("gymnasium", reason="pip install -e '.[gymnasium]'")
    (game,) = parse(yaml.safe_load(blocks("yaml", PAGE)[1])).games
    check_game(game)
    assert settled(game).action_form == "bare"
