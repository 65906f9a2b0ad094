"""Test the catalog's table: each game names an existing class, and subclasses match, too."""

import pytest
from textarena.envs.Nim.env import NimEnv
from textarena.envs.registration import ENV_REGISTRY

from tests.helpers.games import COUNT_UP, LISTED
from unstable.config import ConfigError, GameConfig
from unstable.games.catalog.kuhn import KuhnPoker
from unstable.games.catalog.table import EXPERT_GAMES, GAMES, info_of
from unstable.games.check import check_game
from unstable.games.game import Game
from unstable.games.info import GameInfo
from unstable.games.services import game_info, lists_legal_moves
from unstable.games.textarena import env_class, known_ids

every_game = pytest.mark.parametrize("info", GAMES, ids=lambda info: info.name)


def config_of(info: GameInfo) -> GameConfig:
    """A game as a config names it: by our class, or by TextArena's id."""
    return GameConfig(env=info.name if ":" in info.name else f"{info.name}-v0")


def class_of(info: GameInfo) -> type:
    """The env's class; skips the test if its file has a syntax error on this Python version."""
    try:
        return env_class(config_of(info))
    except ConfigError as error:
        if not isinstance(error.__cause__, SyntaxError):
            raise
        pytest.skip(f"syntax error on this Python version: {error}")


@every_game
def test_catalog_class_and_its_subclasses_have_its_info(info: GameInfo) -> None:
    found = class_of(info)
    assert info.env in [cls.__name__ for cls in found.__mro__]
    child = type("Child", (found,), {})
    assert info_of(found) is info_of(child) is info_of(type("Grandchild", (child,), {})) is info


@every_game
def test_catalog_name_is_valid_in_config(info: GameInfo) -> None:
    """Needs no import, and so covers files with syntax errors on this Python version, too."""
    env = config_of(info).env
    if ":" not in env:
        assert env in known_ids()
        env = ENV_REGISTRY[f"{env}-raw"].entry_point
    assert env.rpartition(":")[2] == info.env


def test_catalog_games_are_unique() -> None:
    assert len({info.env for info in GAMES}) == len({info.name for info in GAMES}) == len(GAMES)


def test_legal_moves_of_every_catalog_game_are_tested() -> None:
    """`LISTED` has the games of tests of legal moves; two games need a later Python version."""
    tried = {game_info(GameConfig(env=env)).env for env, _ in LISTED}
    listing = {info.env for info in GAMES if info.legal_moves or info.prints_moves}
    assert listing - tried == {"ReverseTicTacToeEnv", "ChessEnv"}


def test_nearest_catalog_ancestor_applies() -> None:
    """Our KuhnPoker extends TextArena's, which has no expert."""
    (parent,) = KuhnPoker.__bases__
    assert info_of(parent).expert is None
    assert info_of(KuhnPoker).expert is not None
    assert info_of(type("House", (KuhnPoker,), {})) is info_of(KuhnPoker)
    assert info_of(type("House", (parent,), {})) is info_of(parent)


class HouseNim(NimEnv):
    """Nim with its own constructor."""

    def __init__(self) -> None:
        super().__init__(piles=[1, 2])


def test_custom_subclass_gets_catalog_services() -> None:
    config = GameConfig(env=f"{__name__}:HouseNim")
    check_game(config)
    assert lists_legal_moves(config) and game_info(config).expert
    game = Game(config, seed=0)
    assert game.shows_all
    assert game.legal_moves() == ["[0 1]", "[1 1]", "[1 2]"]
    assert game.expert_moves() == {"[1 1]": 1.0}
    assert "nim-sum" in game.expert_reason("[1 1]")
    game.step("[1 1]")
    assert game.observe().events == []


def test_unknown_env_has_no_services() -> None:
    config = GameConfig(env=COUNT_UP)
    assert not lists_legal_moves(config) and game_info(config).expert is None
    game = Game(config, seed=0)
    assert not game.shows_all
    with pytest.raises(ValueError, match="does not list its legal moves; set games.legal_moves"):
        game.legal_moves()
    with pytest.raises(ValueError, match=f"has no expert; .* {EXPERT_GAMES}$"):
        game.expert_moves()
    with pytest.raises(ValueError, match="has no expert"):
        game.expert_reason("[1]")
