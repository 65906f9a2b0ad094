"""Environments of OpenEnv servers, here the server of our own games."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.mistakes import line_of, refused
from tests.helpers.openenv import served_beside
from unstable.config import GameConfig
from unstable.contrib.environments.openenv import OpenEnvEnvironment, environment_class
from unstable.games.check import check_game
from unstable.games.game import Game
from unstable.games.screen import ignores_seed
from unstable.records.folder import RunFolder
from unstable.records.reading import Skipped
from unstable.records.scan import read_game_at, scan_games
from unstable.studies.openenv.games import ClientGames


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, ClientGames, Path]]:
    folder = tmp_path_factory.mktemp("openenv")
    with served_beside(folder) as (url, games):
        yield url, games, folder


@pytest.fixture
def url(served: tuple[str, ClientGames, Path]) -> str:
    return served[0]


def of_server(url: str, **args: Any) -> GameConfig:
    return GameConfig(env=f"openenv:{url}", seats=1, args=args)


def test_game_passes_the_check_and_repeats_by_seed(url: str) -> None:
    config = of_server(url)
    check_game(config, "games.0")
    assert not ignores_seed(config)


def test_games_are_as_the_server_records_them(served: tuple[str, ClientGames, Path]) -> None:
    url, _, folder = served
    config, rng = (
        of_server(url, reset={"player": "trainer", "opponent": "expert"}),
        random.Random(2),
    )
    payoffs, actions = [], []
    for seed in range(8):
        game = Game(config, seed)
        while not game.done:
            seen = game.observe()
            assert [each["role"] for each in seen.chat] == ["user"] and not seen.board
            actions.append(rng.choice(game.legal_moves()))
            game.step(actions[-1])
        payoffs += game.payoffs
    games = [read_game_at(place) for place, _ in scan_games(RunFolder(folder), Skipped())]
    own = [each for each in games if "trainer" in {str(s.player) for s in each.spec.seats}]
    seats = [[str(s.player) for s in each.spec.seats].index("trainer") for each in own]
    assert sorted(each.outcomes[seat] for each, seat in zip(own, seats, strict=True)) == sorted(
        payoffs
    )
    taken = [
        t.answer.action
        for each, seat in zip(own, seats, strict=True)
        for t in each.turns
        if t.seat == seat
    ]
    assert sorted(taken) == sorted(actions)


def environment(url: str, **args: Any) -> OpenEnvEnvironment:
    env = environment_class(url)(**args)
    env.reset(1, 7)
    return env


def test_answers_of_another_type_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    env = environment(url)
    shown, legal = env.observe(), env.legal_moves()
    kind = {"properties": {"message": {"type": "integer"}}, "required": ["message"]}
    monkeypatch.setattr(env, "schema", kind)  # the server wants a text all the same
    assert env.step("[bet]").refused and env.step("3").refused
    assert (env.observe(), env.legal_moves()) == (shown, legal)
    monkeypatch.undo()
    monkeypatch.setattr(env, "_field", None)
    for answer in ("[3]", "bet", '{"text": "[bet]"}'):
        assert env.step(answer).refused
    step = env.step('{"message": "nonsense", "metadata": {}}')
    assert step.over and env.payoffs() == [-1.0]


def test_invalid_move_costs_what_the_server_says(url: str) -> None:
    game = Game(of_server(url), 1)
    game.step("I would rather not say.")
    assert game.done and game.payoffs == [-1.0]


def test_mistakes_are_one_line(url: str) -> None:
    refused("not a URL; give one such as openenv:http://", environment_class, "localhost:8000")
    said = line_of(environment_class, "http://127.0.0.1:1")
    assert said.startswith("target = 'openenv:http://127.0.0.1:1': no OpenEnv server (")
    kind = environment_class(url)
    refused("games.args = 'move': no field of the action; use one of message", kind, action="move")
    refused("games.args.token_env = 'NOT_SET'", kind, token_env="NOT_SET")
    with pytest.raises(ValueError, match="cannot be copied"):
        environment(url).copied()


def test_reset_that_the_server_refuses_fails_the_game(url: str) -> None:
    with pytest.raises(ValueError, match="oponent: Extra inputs are not permitted"):
        environment(url, reset={"oponent": "expert"})


def test_full_server_is_named(tmp_path: Path) -> None:
    with served_beside(tmp_path, in_flight=1) as (url, _):
        first = environment(url)
        with pytest.raises(RuntimeError, match="let the server open a session per game in flight"):
            environment(url)
        first.step(first.legal_moves()[0])
        del first
        environment(url)
