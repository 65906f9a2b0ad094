"""Kinds of opponents: a section each, and the class of a player that the section names."""

from pathlib import Path
from typing import Any, get_args

import pytest

from tests.helpers.players import Recorder, model_player
from tests.helpers.rows import every_row
from unstable.collectors.players import player_class
from unstable.collectors.players.base import OpponentPlayer, Player
from unstable.commands.prepare import check_games
from unstable.config import (
    CheckpointOpponent,
    ConfigError,
    ExpertOpponent,
    FixedOpponent,
    GameConfig,
    MCTSOpponent,
    OpenAIOpponent,
    PythonOpponent,
    RandomOpponent,
    RulesOpponent,
    SearchOpponent,
    parse,
)
from unstable.config.opponents import OPPONENT_KINDS
from unstable.games.game import Game
from unstable.types import PlayerId, SeatSpec

SECTIONS = get_args(FixedOpponent)
OPPONENTS: list[FixedOpponent] = [
    RandomOpponent(),
    ExpertOpponent(),
    RulesOpponent(),
    PythonOpponent(target=f"{__name__}:take_the_middle"),
    CheckpointOpponent(path="/some/warm"),
    SearchOpponent(path="/some/warm", continuations=2),
    MCTSOpponent(simulations=2),
    OpenAIOpponent(model="m", api_key_env="SOME_KEY"),
]


def take_the_middle(observation: str) -> str:
    return "[4]"


def test_all_opponent_kinds_are_covered() -> None:
    assert [type(opponent) for opponent in OPPONENTS] == list(SECTIONS)
    assert [opponent.kind for opponent in OPPONENTS] == OPPONENT_KINDS


@every_row("section", *SECTIONS)
def test_each_section_maps_to_a_player_class(section: type[FixedOpponent]) -> None:
    opponent = next(each for each in OPPONENTS if isinstance(each, section))
    player: Any = player_class(opponent)
    assert isinstance(player, type) and issubclass(player, OpponentPlayer)
    assert isinstance(player.per_game, bool)
    for name in ("check", "make"):  # class methods
        assert getattr(player, name).__self__ is player


@every_row("opponent", *OPPONENTS)
async def test_class_makes_player(opponent: FixedOpponent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "anything")
    asked: list[str] = []

    def model(adapter: str) -> Player:
        asked.append(adapter)
        return model_player(Recorder("[4]"), adapter=adapter, version=None)

    envs = {"rules": "SimpleTak-v0", "mcts": "open_spiel:tic_tac_toe"}
    config = GameConfig(env=envs.get(opponent.kind, "TicTacToe-v0"))
    seat = SeatSpec(player=PlayerId(opponent.key), temperature=0.7)
    player = player_class(opponent).make(opponent, config, seat, model)
    kind = opponent.kind
    assert asked == ([f"checkpoint:{kind}:warm"] if kind in ("checkpoint", "search") else [])
    if kind not in ("openai", "search"):  # tested in test_players.py and test_search.py
        game = Game(config, seed=0)
        answer = await player.act(game.observe(), game, seed=1)
        assert answer.action in game.legal_moves()


def test_error_names_the_opponents_config_field() -> None:
    games = {"games": [{"env": "PigDice-v0"}]}
    listed = {"opponents": {"fixed": [{"kind": "random"}, {"kind": "expert", "name": "strong"}]}}
    with pytest.raises(ConfigError, match=r"^opponents.fixed.1 = 'strong' in PigDice-v0: it plays"):
        check_games(parse(games | listed))
    with pytest.raises(ConfigError, match=r"^eval.opponents = 'expert' in PigDice-v0: it plays"):
        check_games(parse(games | {"eval": {"opponents": ["expert"]}}))
    check_games(parse(games | {"eval": {"opponents": ["expert"], "every": 0}}))


@every_row("name", "main@3", "rival@0", "a@b", "@")
def test_opponent_names_like_versions_are_rejected(name: str) -> None:
    entry: dict[str, Any] = {"kind": "random", "name": name}
    with pytest.raises(ConfigError, match=r"^opponents.fixed.0.name = .*: reserved name; "):
        parse({"opponents": {"fixed": [entry]}})
    remote = {"kind": "openai", "model": "m@2"}  # openai:m@2 is not a version
    assert parse({"opponents": {"fixed": [remote]}}).opponents.fixed[0].key == "openai:m@2"


def test_default_opponent_names() -> None:
    assert [opponent.key for opponent in OPPONENTS] == [
        "random",
        "expert",
        "rules",
        "python:take_the_middle",
        "checkpoint:warm",
        "search:warm",
        "mcts",
        "openai:m",
    ]
    folders = [opponent.adapter_folder for opponent in OPPONENTS]
    assert folders == [*[None] * 4, Path("/some/warm"), Path("/some/warm"), None, None]
    programs = [opponent.kind for opponent in OPPONENTS if opponent.is_program]
    assert programs == ["random", "expert", "rules", "python", "mcts"]
