"""`unstable serve --openenv`: clients play seats; their games are recorded and rated."""

import asyncio
import json
import random
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import websockets

from tests.helpers.cli import background, ended, in_process, ran
from tests.helpers.measures import PACKAGE, ROOT
from tests.helpers.mistakes import refused
from tests.helpers.openenv import Client, client, served_beside, serving
from tests.helpers.serving import make_run, served_config, url_of
from unstable.collectors.players.programs import RandomPlayer
from unstable.commands.session import gone_after
from unstable.config import RunConfig, RunFailedError, dump, load
from unstable.engines.base import EngineDiedError
from unstable.records.folder import RunFolder
from unstable.records.reading import Skipped
from unstable.records.scan import read_game_at, scan_games
from unstable.serving import server as servers
from unstable.studies.openenv.protocol import ResetRequest
from unstable.studies.openenv.serving import opponents_of
from unstable.studies.rebuilding import rebuild
from unstable.types import RecordedGame


def recorded(folder: Path) -> list[RecordedGame]:
    return [read_game_at(place) for place, _ in scan_games(RunFolder(folder), Skipped())]


async def test_game_is_as_recorded_and_rated(tmp_path: Path) -> None:
    rng = random.Random(1)
    async with serving(tmp_path) as (server, games), client(server) as player:
        for seed in range(12):
            *turns, end = await player.play(rng.choice, seed=seed, episode_id=f"e{seed}")
            state = await player.ask({"type": "state"})
            (game,) = [each for each in recorded(tmp_path) if each.spec.game_id == seed]
            last = end["observation"]
            own = [turn for turn in game.turns if turn.seat == last["seat"]]
            known = {"episode_id": f"e{seed}", "step_count": len(own), "game_id": seed}
            assert state == {"type": "state", "data": known}
            shown = [each["observation"]["messages"][-1]["content"] for each in turns]
            assert shown == [turn.answer.observation for turn in own] and last["messages"] == []
            assert last["result"]["outcomes"] == game.outcomes
            assert [each["reward"] for each in turns] == [None] * len(own)
            assert end["reward"] == game.outcomes[last["seat"]]
            players = {str(seat.player) for seat in game.spec.seats}
            assert players == {"client", last["opponent"]}
        found = counts(games.lines())
    assert found == rebuilt(tmp_path, games.config)
    assert found["client"] == 12 == found["random"] + found["expert"]


async def test_client_holds_all_seats_of_its_team(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "games": [{"env": "Codenames-v0", "seats": 4}],
        "eval.exploitability.every": 0,
    }
    async with serving(tmp_path, ["rules"], **changes) as (server, games), client(server) as player:
        for seat in range(4):
            spec, _, own = games.deal(ResetRequest(seat=seat))
            held = [place for place, each in enumerate(spec.seats) if each.player.name == "client"]
            assert own == seat and tuple(held) in spec.sides and seat in held
        turns = await player.play(lambda moves: "[apple 1]", seat=1)
        assert {each["observation"]["seat"] for each in turns[:-1]} <= set(spec.sides[0])
        assert counts(games.lines()) == {"client": 1, "rules": 1}


async def test_seed_repeats_deal_seat_opponent_and_its_answers(tmp_path: Path) -> None:
    first: dict[int, Any] = {}
    async with serving(tmp_path) as (server, _), client(server) as one, client(server) as other:
        for seed in range(16):
            first[seed] = await one.play(seed=seed)
            assert await other.play(seed=seed) == first[seed]
        seats = {seen[0]["observation"]["seat"] for seen in first.values()}
        opponents = {seen[0]["observation"]["opponent"] for seen in first.values()}
        assert (seats, opponents) == ({0, 1}, {"random", "expert"})
        chosen = await one.play(seed=3, seat=1, opponent="expert", player="grpo-1")
        assert chosen[0]["observation"]["seat"] == 1
    plays = [each for each in recorded(tmp_path) if each.spec.game_id == 3]
    assert [each.version for each in plays] == [0, 1, 2]
    assert str(plays[2].spec.seats[1].player) == "grpo-1"


async def test_unseeded_games_differ(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, _), client(server) as player:
        shown = {str((await player.reset())["observation"]["messages"]) for _ in range(12)}
    assert len(shown) > 2


def asks(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data}


INVALID, TAKEN = "VALIDATION_ERROR", "another player's name; choose another"
MISTAKES = [
    ("{", "INVALID_JSON", "not JSON"),
    ([1], INVALID, "a message is an object with a type"),
    ({"type": "move"}, "UNKNOWN_TYPE", "type = 'move': use reset, step, state or close"),
    (
        asks("reset", oponent="expert"),
        INVALID,
        "'oponent': Extra inputs are not permitted; known: seed, episode_id, game, opponent, seat,",
    ),
    (asks("reset", opponent="me"), INVALID, "opponent = 'me': unknown; use one of random, expert"),
    (asks("reset", game="Chess"), INVALID, "game = 'Chess': unknown; use one of Kuhn"),
    (asks("reset", seat=2), INVALID, "seat = 2: Kuhn has seats 0 to 1"),
    (asks("reset", player="expert"), INVALID, f"player = 'expert': {TAKEN}"),
    (asks("reset", player="rules"), INVALID, f"player = 'rules': {TAKEN}"),
    (asks("reset", player="main@3"), INVALID, "'player': String should match pattern"),
    (asks("step", message="[bet]"), "EXECUTION_ERROR", "no game in play; send reset first"),
    (asks("step"), INVALID, "'message': Field required"),
]


async def test_mistake_is_one_line_and_session_goes_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, _), client(server) as player:
        for message, code, said in MISTAKES:
            answer = await player.ask(message)
            assert answer["type"] == "error" and answer["data"]["code"] == code
            assert answer["data"]["message"].startswith(said), answer
            assert "\n" not in answer["data"]["message"]
        assert (await player.play())[-1]["done"]


async def test_invalid_move_forfeits(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, _), client(server) as player:
        seen = await player.reset(seat=0)
        end = await player.step("I would rather not say.")
    assert end["done"] and end["reward"] == -1 and end["observation"]["result"]["forfeit"] == 0
    (game,) = recorded(tmp_path)
    assert game.forfeit == 0
    assert seen["observation"]["legal_moves"] == ["[check]", "[bet]"]


def counts(lines: Sequence[str]) -> dict[str, int]:
    """Games by player, as the server prints them."""
    return {line.split(":")[0]: int(line.split()[1]) for line in lines}


def rebuilt(folder: Path, config: RunConfig) -> dict[str, int]:
    """Games by player, as `unstable ratings` counts them."""
    (folder / "config.yaml").write_text(dump(config), encoding="utf-8")
    ratings = rebuild(RunFolder(folder), Skipped()).ratings
    return {each.player.name: each.games for each in ratings if each.games}


async def test_game_that_a_client_leaves_does_not_count(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, games):
        async with client(server) as player:
            for seed in range(8):  # each reset leaves the game before it
                await player.reset(seed=seed)
        async with client(server) as player:
            (*_, end) = await player.play(seed=20)
        expected = {"client": 1, end["observation"]["opponent"]: 1}
        assert counts(games.lines()) == expected
    assert [each.spec.game_id for each in recorded(tmp_path)] == [20]
    assert rebuilt(tmp_path, games.config) == expected


def test_folder_without_games_is_deleted(tmp_path: Path) -> None:
    played, empty = tmp_path / "played", tmp_path / "empty"
    played.mkdir()
    empty.mkdir()
    with gone_after(empty, lambda: True), gone_after(played, lambda: False):
        assert played.is_dir() and empty.is_dir()
    with pytest.raises(RunFailedError), gone_after(played, lambda: True):
        raise RunFailedError("the engine died")
    assert [each.name for each in tmp_path.iterdir()] == ["played"]


def test_official_client_plays(tmp_path: Path) -> None:
    openenv = pytest.importorskip("openenv", reason="openenv is not installed")
    with (
        served_beside(tmp_path) as (url, _),
        openenv.GenericEnvClient(base_url=url).sync() as env,
    ):
        seen = env.reset(seed=3, player="official")
        while not seen.done:
            seen = env.step({"message": seen.observation["legal_moves"][0]})
        assert env.state()["game_id"] == 3
        with pytest.raises(RuntimeError, match="no game in play; send reset first"):
            env.step({"message": "[bet]"})
    (game,) = recorded(tmp_path)
    assert seen.reward == game.outcomes[seen.observation["seat"]]


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("trl"), reason="trl is not installed")
def test_trl_trains_against_served_players(tmp_path: Path) -> None:
    with served_beside(tmp_path, in_flight=128) as (url, games):
        example, model = ROOT / "examples/trl_openenv.py", PACKAGE / "models/tiny_cards"
        done = ran([sys.executable, example, url, model, "1"], tmp_path)
        assert done.returncode == 0, done.stderr
        assert counts(games.lines())["grpo-0"] == 128


async def never(*_: object) -> None:
    await asyncio.Event().wait()


async def test_client_that_leaves_in_a_turn_frees_its_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RandomPlayer, "act", never)
    async with serving(tmp_path, ["random"], in_flight=1) as (server, _):
        async with client(server) as player:
            for message in (asks("reset", seed=0, seat=0), asks("step", message="[check]")):
                await player.socket.send(json.dumps(message))
            await asyncio.sleep(0.1)
        async with client(server) as player:
            assert (await player.ask({"type": "state"}))["type"] == "state"


async def test_closing_the_server_ends_games_in_play(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RandomPlayer, "act", never)
    before = asyncio.all_tasks()
    async with serving(tmp_path, ["random"]) as (server, _), client(server) as player:
        for message in (asks("reset", seat=0), asks("step", message="[check]")):
            await player.socket.send(json.dumps(message))
        await asyncio.sleep(0.1)
        await server.close()
    left = [task for task in asyncio.all_tasks() - before if "websockets" not in repr(task)]
    assert not left, left


async def test_frames_without_a_message_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, _), client(server) as player:
        for frame, code in ((b"{}", "INVALID_JSON"), ("[" * 100_000, "INVALID_JSON")):
            await player.socket.send(frame)
            assert json.loads(await player.socket.recv())["data"]["code"] == code
        answer = await player.ask(asks("reset", **{"a\nb": 1}))
        assert "\n" not in answer["data"]["message"]
        assert (await player.play())[-1]["done"]


async def test_sessions_are_limited(tmp_path: Path) -> None:
    async with serving(tmp_path, in_flight=2) as (server, _):
        async with client(server) as one, client(server) as two:
            await one.reset()
            await two.reset()
            async with client(server) as three:
                answer = json.loads(await three.socket.recv())
                assert answer["data"]["code"] == "CAPACITY_REACHED"
                with pytest.raises(websockets.ConnectionClosed):
                    await three.socket.recv()
            await one.ask({"type": "state"})
        async with client(server) as three:
            await three.reset()


async def test_dead_engine_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(*_: object) -> None:
        raise EngineDiedError("out of memory")

    monkeypatch.setattr(RandomPlayer, "act", act)
    async with serving(tmp_path, ["random"]) as (server, games), client(server) as player:
        answers = [await player.ask(asks("reset", seed=seed)) for seed in range(8)]
        assert await games.died == "out of memory"
    failed = [each["data"] for each in answers if each["type"] == "error"]
    assert {each["message"] for each in failed} == {"the game failed: out of memory"}


async def test_sixty_four_clients_play_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, games):

        async def plays(number: int) -> int:
            async with client(server) as player:
                return sum([(await player.play(seed=number))[-1]["done"] for _ in range(3)])

        assert sum(await asyncio.gather(*map(plays, range(64)))) == 192
    assert len(recorded(tmp_path)) == 192


async def opened(server: servers.Server, **headers: str) -> bool:
    try:
        async with client(server, **headers) as player:
            await player.reset()
    except (websockets.InvalidStatus, websockets.ConnectionClosed):
        return False
    return True


async def test_web_pages_and_clients_without_the_token_are_refused(tmp_path: Path) -> None:
    async with serving(tmp_path / "a") as (server, _):
        assert await opened(server)
        assert not await opened(server, Origin="http://evil.example")
        renamed = f"ws://evil.example:{server.port}/ws"  # a name that resolves to this machine
        with pytest.raises(websockets.InvalidStatus):
            await websockets.connect(renamed, host=server.host, port=server.port, proxy=None)
    async with serving(tmp_path / "b", token="open-sesame-please") as (server, _):
        assert (await asyncio.to_thread(told, f"{server.url}/health"))["status"] == "healthy"
        for name in ("schema", "metadata"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                await asyncio.to_thread(told, f"{server.url}/{name}")
        assert not await opened(server)
        assert not await opened(server, Authorization="Bearer open-sesame-pleasf")
        assert await opened(server, Authorization="Bearer open-sesame-please")


async def test_silent_session_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_HEADER_S", 0.2)  # a request's header must come in time
    async with serving(tmp_path) as (server, _), client(server) as player:
        await player.reset(seed=1)
        await asyncio.sleep(0.6)
        assert (await player.ask({"type": "state"}))["data"]["game_id"] == 1


def told(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(url, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


async def test_schema_describes_messages(tmp_path: Path) -> None:
    async with serving(tmp_path) as (server, _), client(server) as player:
        urls = [f"{server.url}/{name}" for name in ("schema", "metadata", "health")]
        schema, about, health = await asyncio.gather(*(asyncio.to_thread(told, u) for u in urls))
        seen = await player.reset()
        state = await player.ask({"type": "state"})
    assert schema["action"]["required"] == ["message"]
    assert set(seen["observation"]) == set(schema["observation"]["properties"])
    assert set(state["data"]) == set(schema["state"]["properties"])
    assert about == {"name": "unstable", "description": "Kuhn against random, expert"}
    assert health == {"status": "healthy"}


def test_mistakes_of_the_command_line(tmp_path: Path) -> None:
    config = load("tiny_kuhn")
    refused("--against: no opponent; name some, such as", opponents_of, config, None, [], [])
    refused("--against = 'me': unknown player", opponents_of, config, None, [], ["me"])
    done = in_process(tmp_path, "serve", "--config", "tiny_kuhn", "--against", "expert")
    assert done.returncode == 2, done.stdout
    assert "--against: names opponents of games; add --openenv" in done.stderr + done.stdout


async def test_versions_play_and_their_answers_replay(tmp_path: Path) -> None:
    make_run(tmp_path / "run", served_config(), [0, 3])
    words = ["serve", "run", "--versions", "0,3", "--openenv", "--against", "random"]
    process = background(tmp_path, [*words, "--port", "0", "--run_dir", "games"])
    url = await asyncio.to_thread(url_of, process)
    names = set()
    async with websockets.connect(f"{url.replace('http', 'ws')}/ws", proxy=None) as socket:
        player = Client(socket)
        for seed in range(4):
            *_, end = await player.play(seed=seed, **({} if seed else {"opponent": "run:3"}))
            names.add(end["observation"]["opponent"])
    assert "run:3" in names
    output = await asyncio.to_thread(ended, process, 130, signal.SIGINT)
    assert "run:3: " in output and "games: games" in output
    done = in_process(tmp_path, "replay", "games", "0", "--purpose", "eval", "--version", "0")
    assert "Identical: " in done.stderr + done.stdout, done.stdout
