"""Environments of OpenEnv servers, here the server of our own games."""

import contextlib
import random
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.cli import ran
from tests.helpers.mistakes import line_of, refused
from tests.helpers.openenv import served_beside
from unstable.config import GameConfig
from unstable.contrib.environments.openenv import (
    OpenEnvEnvironment,
    _RefusedError,
    environment_class,
    server_url,
)
from unstable.games.check import check_game
from unstable.games.environment import ServiceDownError
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
    rng, payoffs, actions = random.Random(2), dict[str, float](), dict[str, list[str]]()
    for seed in range(8):
        name = f"trainer-{seed}"
        game = Game(of_server(url, reset={"player": name, "opponent": "expert"}), seed)
        actions[name] = []
        while not game.done:
            seen = game.observe()
            assert [each["role"] for each in seen.chat] == ["user"] and not seen.board
            actions[name].append(rng.choice(game.legal_moves()))
            game.step(actions[name][-1])
        (payoffs[name],) = game.payoffs
    games = [read_game_at(place) for place, _ in scan_games(RunFolder(folder), Skipped())]
    for each in games:
        players = [str(seat.player) for seat in each.spec.seats]
        for seat in (seat for seat, name in enumerate(players) if name in payoffs):
            assert each.outcomes[seat] == payoffs.pop(players[seat])
            taken = [turn.answer.action for turn in each.turns if turn.seat == seat]
            assert taken == actions[players[seat]]
    assert not payoffs


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
    for answer in ("[3]", "bet", '{"text": "[bet]"}', "[" * 20_000):
        assert env.step(answer).refused
    step = env.step('{"message": "nonsense", "metadata": {}}')
    assert step.over and env.payoffs() == [-1.0]


def test_invalid_move_costs_what_the_server_says(url: str) -> None:
    game = Game(of_server(url), 1)
    game.step("I would rather not say.")
    assert game.done and game.payoffs == [-1.0]


def test_mistakes_are_one_line(url: str) -> None:
    names = "localhost:8 localhost/a echo_env a/ a/b/c éa/b datasets/a"
    for name in (*names.split(), "a/b c", ""):
        place = f"^target = 'openenv:{name}': neither a URL nor a Space's OWNER/NAME; start the "
        refused(f"{place}environment's server and give its URL, such as", environment_class, name)
    said = line_of(environment_class, "http://127.0.0.1:1")
    assert said.startswith("target = 'openenv:http://127.0.0.1:1': no OpenEnv server at http://127")
    kind = environment_class(url)
    said = "games.args.{} = 'move': no field of the action; use one of message"
    refused(said.format("action"), kind, action="move")
    refused(said.format("fixed"), kind, fixed={"move": 1})
    refused("at http://. .Invalid IPv6 URL.; start it", environment_class, "http://[")
    for name in ("http://127.0.0.1:80 80", "http://me:secret@127.0.0.1", "ftp://a"):
        refused("neither a URL", environment_class, name)
    with pytest.raises(ValueError, match="cannot be copied"):
        environment(url).copied()


@contextlib.contextmanager
def answering(reply: bytes, times: int) -> Iterator[tuple[str, list[bytes]]]:
    """Answer some connections with the same bytes; yield the URL and what they asked."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            for _ in range(times):
                asking, _ = listening.accept()
                with asking:
                    asked.append(asking.recv(4096))
                    asking.sendall(reply)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
        thread.join(10)


def test_server_that_speaks_another_protocol_is_one_line() -> None:
    with answering(b"SSH-2.0-OpenSSH_9\r\n", 1) as (url, _):
        refused(f"no OpenEnv server at {url} .SSH-2.0", environment_class, url)


def test_name_of_a_space_is_its_url() -> None:
    """Names as `AutoEnv` of OpenEnv 0.10 reads them (`openenv.core.utils.hf_space_subdomain`)."""
    for name in ("openenv/echo_env", "https://huggingface.co/spaces/openenv/echo_env"):
        assert server_url(name) == "https://openenv-echo-env.hf.space"
    assert server_url("Me_2/My.Game-1") == "https://me-2-my-game-1.hf.space"
    for url in ("http://host:8000", "https://openenv-echo-env.hf.space", "http://a/b"):
        assert server_url(url) == server_url(f"{url}/") == url


def test_space_is_reached_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY", "socks_proxy", "wss_proxy"):
        monkeypatch.delenv(name, raising=False)
    with answering(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", 2) as (url, asked):
        monkeypatch.setenv("https_proxy", url)
        said = line_of(environment_class, "openenv/echo_env")
        place = {"address": "https://openenv-echo-env.hf.space", "schema": {}}
        with pytest.raises(RuntimeError, match="https://openenv-echo-env.hf.space: no session"):
            type("Space", (OpenEnvEnvironment,), place)().reset(1, 7)
    assert [each.split()[1] for each in asked] == [b"openenv-echo-env.hf.space:443"] * 2
    assert said.startswith("target = 'openenv:openenv/echo_env': no OpenEnv server at https://open")
    assert "502 Bad Gateway" in said and "start it, set its URL, or export its token as" in said


def test_token_opens_schema_and_session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENENV_TOKEN", raising=False)
    with served_beside(tmp_path, token="open-sesame-please") as (url, _):
        refused("export its token as OPENENV_TOKEN", environment_class, url)
        monkeypatch.setenv("OPENENV_TOKEN", "open-sesame-please")
        env = environment(url)
        monkeypatch.setenv("OPENENV_TOKEN", "another-one-that-is-wrong")
        with pytest.raises(RuntimeError, match="if it needs a token, export it as OPENENV_TOKEN"):
            env.reset(1, 3)


def test_answer_cannot_change_fixed_fields(url: str) -> None:
    env = environment(url, fixed={"metadata": {"by": "us"}})
    assert env._data("[bet]") == {"message": "[bet]", "metadata": {"by": "us"}}
    env._field = None
    data = env._data('{"message": "[bet]", "metadata": {"by": "me"}}')
    assert data == {"message": "[bet]", "metadata": {"by": "us"}}


def test_reset_that_the_server_refuses_fails_the_game(url: str) -> None:
    with pytest.raises(_RefusedError, match="'oponent': Extra inputs are not permitted"):
        environment(url, reset={"oponent": "expert"})


def test_lost_connection_is_no_fault_of_the_mover(url: str) -> None:
    env = environment(url)
    env._socket.close()
    with pytest.raises(ServiceDownError, match="no answer"):
        env.step("[bet]")


def test_process_ends_with_a_game_in_play(url: str, tmp_path: Path) -> None:
    code = f"from {environment_class.__module__} import *; kept = environment_class({url!r})()"
    done = ran([sys.executable, "-c", f"{code}; kept.reset(1, 7)"], tmp_path)
    assert done.returncode == 0, done.stderr


def test_full_server_is_named(tmp_path: Path) -> None:
    with served_beside(tmp_path, in_flight=1) as (url, _):
        first = environment(url)
        with pytest.raises(RuntimeError, match="let the server open a session per game in flight"):
            environment(url)
        first.step(first.legal_moves()[0])
        del first
        environment(url)
