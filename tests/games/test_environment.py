"""Test the `Environment` protocol: a custom game is played, forfeited and solved."""

import ast
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.coin import COIN as CONFIG
from tests.helpers.coin import CoinPoker
from tests.helpers.mistakes import refused
from tests.helpers.rows import every_row
from tests.helpers.trees import uniform
from unstable.config import InvalidMovesConfig
from unstable.games.check import check_game
from unstable.games.game import Game
from unstable.games.services import lists_legal_moves
from unstable.solving.best_response import assess
from unstable.solving.tree import grow

PACKAGE = Path(__file__).parent.parent.parent / "unstable"


def coin_game(coin: str, **changes) -> Game:
    config = CONFIG.model_copy(update=changes)
    games = (Game(config, seed) for seed in range(100))
    return next(game for game in games if coin in game.observe().board)


@every_row(
    "coin, actions, pays",
    ("heads", ["[bet]", "[call]"], 2.0),
    ("tails", ["[bet]", "[call]"], -2.0),
    ("tails", ["[bet]", "[fold]"], 1.0),
    ("heads", ["[stay]"], 0.0),
)
def test_environment_plays_to_its_payoffs(coin: str, actions: list[str], pays: float) -> None:
    game = coin_game(coin)
    assert lists_legal_moves(CONFIG) and game.stakes == 2
    for index, action in enumerate(actions):
        observation = game.observe()
        assert observation.seat == game.seat == index and game.observe() == observation
        assert observation.events == actions[:index] and game.board == observation.board
        assert action in game.legal_moves()
        step = game.step(action)
    assert step == (True, False) and game.reason == f"ended by {actions[-1]}"
    assert game.payoffs == [pays, -pays] and game.outcomes == [pays / 2, -pays / 2]


def test_copy_is_independent_and_errors_forfeit() -> None:
    game = coin_game("heads")
    other = game.copied()
    other.step("[bet]")
    assert game.seat == 0 and game.legal_moves() == ["[bet]", "[stay]"]
    assert other.seat == 1 and other.legal_moves() == ["[call]", "[fold]"]
    game = coin_game("heads", invalid_moves=InvalidMovesConfig(allowed=1))
    assert game.step("[raise]") == (False, True)
    assert game.observe().notice == "bet, stay, call or fold"
    assert game.step("[raise]") == (True, True) and game.forfeit == 0
    assert game.reason == "Player 0 forfeits by an invalid move: bet, stay, call or fold"
    game = coin_game("heads")
    assert game.step("[crash]").done and game.raised and game.outcomes == [-1.0, 0.0]


def moves_of_the_raw(env: CoinPoker) -> list[str]:
    return ["[fold]"] if env.made else ["[bet]"]


def pays_one(env: CoinPoker) -> list[float]:
    return [1.0, 3.0] if env.coin == "heads" else [0.0, 0.0]


def swapped(env: CoinPoker) -> list[int]:
    return [1, 0]


def test_config_overrides_moves_payoffs_and_seating() -> None:
    own: dict[str, Any]
    own = {name: f"{__name__}:{name}" for name in ("moves_of_the_raw", "pays_one", "swapped")}

    named = {"legal_moves": own["moves_of_the_raw"], "payoffs": own["pays_one"]}
    game = coin_game("heads", **named, seating=own["swapped"], payoff_scale=4.0)

    assert game.observe().seat == game.seat == 1 and game.legal_moves() == ["[bet]"]
    game.step("[bet]")
    assert game.legal_moves() == ["[fold]"]
    game.step("[fold]")
    assert game.payoffs == [3.0, 1.0] and game.outcomes == [0.75, 0.25]


def test_environment_is_checked_and_solved() -> None:
    check_game(CONFIG)
    refused("seats = 3: two seats", check_game, CONFIG.model_copy(update={"seats": 3}))
    # Uniform play is worth 1/4 to seat 0; betting only heads against it is worth 3/4.
    tree = grow(CONFIG)
    assert tree.root.probabilities == (0.5, 0.5)
    assert (tree.nodes, len(tree.decisions), tree.most) == (1 + 2 * 5, 3, 2.0)
    found = assess(tree, uniform(tree), forfeits=True)

    assert found.values == pytest.approx((0.25, -0.25))
    assert found.best == pytest.approx((0.5 * 1.5, 0.0))
    assert found.exploitability == pytest.approx(0.375)


def test_only_textarena_module_and_catalog_import_textarena() -> None:
    """No other module can read TextArena's state; `raw` is only passed on."""
    importers, readers = set(), set()
    for path in PACKAGE.rglob("*.py"):
        name, text = str(path.relative_to(PACKAGE)), path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import | ast.ImportFrom):
                modules = [getattr(node, "module", None), *(each.name for each in node.names)]
                if any(str(each).partition(".")[0] == "textarena" for each in modules):
                    importers.add(name)
            inner = getattr(node, "value", None)
            if not (isinstance(node, ast.Attribute) and isinstance(inner, ast.Attribute)):
                continue
            if inner.attr == "raw" or (inner.attr, node.attr) == ("env", "state"):
                readers.add(name)
    catalog = {name for name in importers if name.startswith("games/catalog/")}
    assert importers - catalog == {
        f"games/{name}.py" for name in ("textarena", "textarena1", "words")
    }
    assert readers == set()
