"""Games that programs outside play: their seats are URLs, and what they say of a game counts."""

import asyncio
import socket
from typing import Any

import httpx
import pytest

from tests.helpers.collector import specs
from tests.helpers.driven import GAME, Door, all_of, driven_actor, kuhn_specs, one_game
from tests.helpers.programs import KUHN, own_kuhn
from unstable.config import ConfigError
from unstable.drivers import driving
from unstable.engines.base import SamplingRequest
from unstable.serving.server import bound_socket
from unstable.serving.tables import HostedGame, HostedGames, _PendingRequest
from unstable.types import GameFailure, GameResult


async def test_driven_game_has_same_tokens_as_in_process_game(tmp_path):
    """One after another, so that nothing but the way to the engine differs."""
    alone = {"actors": {"games_in_flight": 1, "engine": "embedded"}}
    async with driven_actor(tmp_path / "own", games=[KUHN], **alone) as actor:
        own = await all_of(actor, kuhn_specs(6))
    async with driven_actor(tmp_path / "driven", **alone) as actor:
        door = Door(actor)
        program = asyncio.create_task(driving(own_kuhn, door.url, token=door.token))
        driven = await all_of(actor, kuhn_specs(6))
    assert await program == 6
    for ours, theirs in zip(own, driven, strict=True):
        assert isinstance(ours, GameResult) and isinstance(theirs, GameResult)
        for name in ("payoffs", "outcomes", "forfeit", "stakes", "truncated"):
            assert getattr(ours, name) == getattr(theirs, name)
        for turn, asked in zip(ours.turns, theirs.turns, strict=True):
            assert (turn.seat, turn.index) == (asked.seat, asked.index)
            assert turn.answer.sampled is not None
            assert turn.answer.sampled == asked.answer.sampled, "ids, logprobs and version"


async def test_run_starts_driver_that_plays_many_games(tmp_path):
    games = [{**GAME, "env": "driver:examples.drivers.kuhn:Kuhn"}]
    async with driven_actor(tmp_path, games=games) as actor:
        results = await all_of(actor, kuhn_specs(12))
    assert all(isinstance(result, GameResult) for result in results)
    assert {tuple(map(abs, result.outcomes)) for result in results} <= {(0.5, 0.5), (1.0, 1.0)}


async def test_driven_games_seat_scripted_players_and_versions(tmp_path):
    async with driven_actor(tmp_path) as actor:
        door = Door(actor)
        program = asyncio.create_task(driving(own_kuhn, door.url, token=door.token, at_once=2))
        games = specs(8, players=("base", "random"), env="Kuhn", purpose="eval")
        results = await all_of(actor, games)
    await program
    for result in results:
        assert isinstance(result, GameResult), result.error
        for turn in result.turns:
            assert turn.player.name == ("base", "random")[turn.seat]
            assert (turn.answer.sampled is None) == (turn.seat == 1)


async def test_random_player_requires_legal_moves(tmp_path):
    async with driven_actor(tmp_path) as actor:
        playing = asyncio.create_task(
            all_of(actor, specs(1, players=("random", "random"), env="Kuhn", purpose="eval"))
        )
        door = Door(actor)
        told = await door.take()
        refused = await door.ask(told["seats"][0], "?")
        assert refused.status_code == 400 and "legal_moves" in refused.json()["error"]["message"]
        taken = await door.ask(told["seats"][0], "?", legal_moves=["up", "down"])
        assert taken.json()["choices"][0]["message"]["content"] in ("up", "down")
        await door.post(told["result_url"], told["result_key"], {"payoffs": [1, -1]})
        (result,) = await playing
        assert isinstance(result, GameResult) and len(result.turns) == 1


async def test_actors_share_the_listen_port(tmp_path):
    """A program that plays one game at a time takes games of both actors."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    first = {"listen": {"port": port, "seats_port": port + 1}}
    second = {"listen": {"port": port, "seats_port": port + 2}}
    async with (
        driven_actor(tmp_path / "0", **first) as one,
        driven_actor(tmp_path / "1", **second) as other,
    ):
        program = asyncio.create_task(driving(own_kuhn, url))
        played = await asyncio.gather(all_of(one, kuhn_specs(5)), all_of(other, kuhn_specs(5)))
        assert all(isinstance(result, GameResult) for results in played for result in results)
        with pytest.raises(ConfigError, match=rf"listen.port = {port}: cannot listen on"):
            bound_socket("127.0.0.1", port, "listen.port")
        program.cancel()


# Faulty programs


async def test_first_posted_result_counts(tmp_path):
    async with one_game(tmp_path) as game:
        await game.door.ask(game.told["seats"][0], "a question")
        assert (await game.end(payoffs=[1, -1])).status_code == 200
        assert (await game.end(payoffs=[-1, 1])).status_code == 409
        result = await game.result()
        assert result.payoffs == [1, -1] and result.outcomes == [0.5, -0.5]
        late = await game.door.ask(game.told["seats"][0], "a question")
        assert late.status_code == 409 and late.json()["error"]["code"] == "game_over"


async def test_result_cancels_pending_answers(tmp_path, monkeypatch):
    """Requests of a finished game keep no version in use."""
    begun: list[int] = []
    given_up: list[bool] = []

    async def never(request: SamplingRequest) -> Any:
        begun.append(request.seed)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            given_up.append(True)
            raise

    async with driven_actor(tmp_path) as actor:
        playing = asyncio.create_task(all_of(actor, kuhn_specs(1)))
        door = Door(actor)
        told = await door.take()
        first, second = told["seats"]
        await door.ask(first, "a question")
        monkeypatch.setattr(actor.engine, "generate", never)
        waiting = [asyncio.create_task(door.ask(second, "one question")) for _ in range(3)]
        while len(begun) < 3:
            await asyncio.sleep(0.01)
        assert len(set(begun)) == 3, "equal requests have seeds of their own"
        await door.post(told["result_url"], told["result_key"], {"payoffs": [1, -1]})
        (result,) = await playing
        assert len(given_up) == 3
        assert isinstance(result, GameResult) and len(result.turns) == 1
        assert [reply.status_code for reply in await asyncio.gather(*waiting)] == [409] * 3


async def test_one_of_two_concurrent_results_counts(tmp_path):
    async with one_game(tmp_path) as game:
        await game.door.ask(game.told["seats"][0], "a question")
        both = await asyncio.gather(game.end(payoffs=[1, -1]), game.end(payoffs=[-1, 1]))
        assert sorted(reply.status_code for reply in both) == [200, 409]
        first = 1 if both[0].status_code == 200 else -1
        assert (await game.result()).payoffs == [first, -first]


async def test_api_key_grants_access_to_its_seat_only(tmp_path):
    async with one_game(tmp_path) as game:
        first, second = game.told["seats"]
        door = game.door
        forged = [
            await door.ask({**first, "api_key": second["api_key"]}, "mine?"),
            await door.ask({**first, "api_key": game.told["result_key"]}, "mine?"),
            await door.ask({**first, "api_key": door.token or ""}, "mine?"),
            await door.post(f"{first['base_url']}/chat/completions", None, {}),
            await door.post(game.told["result_url"], first["api_key"], {"payoffs": [1, -1]}),
            await door.post(game.told["result_url"], None, {"payoffs": [1, -1]}),
            await door.post("/games", first["api_key"]),
            await door.post("/games", None),
        ]
        assert [reply.status_code for reply in forged] == [401] * len(forged)
        other = first["base_url"].replace(game.told["game"], "0" * 32)
        assert (await door.ask({**first, "base_url": other}, "?")).status_code == 404
        third = first["base_url"].replace("/seat/0/", "/seat/2/")
        assert (await door.ask({**first, "base_url": third}, "?")).status_code == 401
        assert not game.playing.done(), "forged requests do not affect the game"
        await door.ask(first, "a question")
        await game.end(payoffs=[2, -2])
        assert len((await game.result()).turns) == 1


async def test_seats_cannot_read_messages_of_others(tmp_path):
    """No address returns a seat's messages to another seat or to a program that takes games."""
    secret = "the king of hearts"
    async with one_game(tmp_path) as game:
        first, second = game.told["seats"]
        door = game.door
        await door.ask(first, f"You hold {secret}.")
        seen = [
            await door.ask(second, "What does the other hold?"),
            await door.ask(second, "x" * 10**5),
            await door.post(game.told["result_url"], second["api_key"], {"payoffs": [1, -1]}),
            await door.post(game.told["result_url"], game.told["result_key"], {"payoffs": [1]}),
            await door.post("/games", door.token, {"wait": 0}),
        ]
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:
            for path in ("", "/v1/models", "/v1/chat/completions", "/v1", "/messages", "/turns"):
                for seat in (first, second):
                    url = seat["base_url"].removesuffix("/v1") + path
                    headers = {"Authorization": f"Bearer {second['api_key']}"}
                    seen.append(await client.get(url, headers=headers))
        assert all(secret not in reply.text for reply in seen)


async def test_malformed_result_leaves_game_open(tmp_path):
    rows: list[tuple[dict[str, Any], str]] = [
        ({}, "give exactly one of payoffs, forfeit, truncated, error"),
        ({"payoffs": [1, -1], "forfeit": 0}, "give exactly one of"),
        ({"payoffs": [1]}, "payoffs: give 2 numbers"),
        ({"payoffs": [1, "x"]}, "payoffs.1"),
        ({"payoffs": [1, -1], "winner": 1}, "winner"),
        ({"forfeit": 2}, "forfeit: must be <= 1"),
        ({"forfeit": -1}, "forfeit"),
    ]
    async with one_game(tmp_path) as game:
        await game.door.ask(game.told["seats"][0], "a question")
        refused = [(await game.end(**said), problem) for said, problem in rows]
        wrong = [(reply.text, problem) for reply, problem in refused if problem not in reply.text]
        assert wrong == [] and {reply.status_code for reply, _ in refused} == {400}
        assert (await game.end(forfeit=1)).status_code == 200
        result = await game.result()
        assert (result.forfeit, result.outcomes) == (1, [0.0, -1.0])


@pytest.mark.parametrize(
    "said, status, why",
    [
        ({"payoffs": [9, -9]}, 422, r"beyond games.payoff_scale = 2"),
        ({"error": "the dealer\nis ill"}, 200, "the program reported an error: the dealer is ill"),
    ],
)
async def test_impossible_result_or_error_fails_the_game(tmp_path, said, status, why):
    async with one_game(tmp_path) as game:
        await game.door.ask(game.told["seats"][0], "a question")
        reply = await game.end(**said)
        assert reply.status_code == status and (status == 200 or why in reply.text)
        assert why in await game.failure()


async def test_result_without_any_request_fails_the_game(tmp_path):
    async with one_game(tmp_path) as game:
        await game.end(payoffs=[1, -1])
        assert "without a request to any seat" in await game.failure()


@pytest.mark.fault("a game driver stops")
async def test_silent_program_fails_its_game(tmp_path):
    async with one_game(tmp_path, games=[{**GAME, "turn_timeout": 0.5}]) as game:
        await game.door.ask(game.told["seats"][0], "a question")
        assert "requested no move of Kuhn within games.turn_timeout = 0.5 s" in await game.failure()


async def test_game_that_no_program_takes_times_out(tmp_path):
    async with driven_actor(tmp_path, games=[{**GAME, "timeout": 0.3}]) as actor:
        results = await all_of(actor, kuhn_specs(2))
    for result in results:
        assert isinstance(result, GameFailure)
        assert "no program took a game of Kuhn within games.timeout = 0.3 s" in result.error


async def test_game_is_truncated_at_max_turns(tmp_path):
    async with one_game(tmp_path, games=[{**GAME, "max_turns": 3}]) as game:
        seat = game.told["seats"][0]
        codes = [(await game.door.ask(seat, f"question {i}")).status_code for i in range(4)]
        assert codes == [200, 200, 200, 409]
        result = await game.result()
        assert result.truncated and len(result.turns) == 3 and result.payoffs == [0, 0]


async def test_killed_driver_fails_its_games_and_restarts(tmp_path):
    games = [{**GAME, "env": "driver:tests.helpers.programs:Slow", "turn_timeout": 60}]
    async with driven_actor(tmp_path, games=games) as actor:
        playing = asyncio.create_task(all_of(actor, kuhn_specs(8)))
        (driver,) = actor.collector.driving.drivers
        while not any(table.asking for table in actor.collector.driving.tables._open.values()):
            await asyncio.sleep(0.02)
        first = driver._process
        first.kill()
        results = await playing
        while driver._process is first:  # games may end before the restart
            await asyncio.sleep(0.02)
    failed = [result for result in results if isinstance(result, GameFailure)]
    assert 1 <= len(failed) <= 4, "only games in flight fail"
    assert all("its game driver exited with exit code -9" in each.error for each in failed)


async def test_crashing_driver_fails_games_with_its_error(tmp_path):
    """The output before the error exceeds the pipe's capacity."""
    games = [{**GAME, "env": "driver:tests.helpers.programs:Loud", "timeout": 60}]
    async with driven_actor(tmp_path, games=games) as actor:
        (result,) = await all_of(actor, kuhn_specs(1))
    assert isinstance(result, GameFailure) and "its game driver exited with" in result.error
    assert "exit code 1; RuntimeError: hoarse" in result.error


@pytest.mark.fault("a game driver stops")
async def test_disconnected_program_gets_no_game(tmp_path):
    """A game goes to a connected program, not to one that disconnected while it waited."""
    async with driven_actor(tmp_path) as actor:
        door = Door(actor)
        host, port = door.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /games HTTP/1.1\r\nHost: localhost\r\n"
            + f"Authorization: Bearer {door.token}".encode()
        )
        writer.write(b"\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}")
        await writer.drain()
        while not door.tables._takers:
            await asyncio.sleep(0.01)
        writer.close()
        await asyncio.sleep(0.2)
        program = asyncio.create_task(driving(own_kuhn, door.url, token=door.token))
        (result,) = await all_of(actor, kuhn_specs(1))
        assert isinstance(result, GameResult)
    await program


async def test_game_of_disconnecting_program_is_offered_again():
    """The connection closes while the game is offered."""
    tables = HostedGames()
    giving = asyncio.create_task(tables._given(_PendingRequest()))
    await asyncio.sleep(0)
    table = HostedGame({"env": "Kuhn"}, [])
    tables.offer(table)
    await giving
    tables._take_back(giving)
    assert await tables._given(_PendingRequest(wait=0.1)) is table


async def test_game_offered_as_a_request_is_cancelled_or_times_out_is_not_lost():
    tables, table = HostedGames(), HostedGame({"env": "Kuhn"}, [])
    giving = asyncio.create_task(tables._given(_PendingRequest()))
    await asyncio.sleep(0)
    tables.offer(table)
    giving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await giving
    assert await tables._given(_PendingRequest(wait=0.1)) is table
    giving = asyncio.create_task(tables._given(_PendingRequest(wait=0.05)))
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_later(0.05, tables.offer, table)
    assert (await giving or await tables._given(_PendingRequest(wait=0.1))) is table


async def test_exception_of_a_seats_player_fails_the_game(tmp_path):
    bot = {"kind": "python", "target": "tests.helpers.programs:lost_for_words", "name": "bot"}
    async with driven_actor(tmp_path, opponents={"fixed": [bot]}) as actor:
        games = specs(1, players=("base", "bot"), env="Kuhn", purpose="eval")
        playing = asyncio.create_task(all_of(actor, games))
        door = Door(actor)
        told = await door.take()
        assert (await door.ask(told["seats"][1], "?")).status_code == 500
        (result,) = await playing
        assert isinstance(result, GameFailure) and "no words" in result.error


async def test_slow_client_does_not_block_others(tmp_path):
    async with driven_actor(tmp_path) as actor:
        door = Door(actor)
        playing = asyncio.create_task(all_of(actor, kuhn_specs(4)))
        slow = await door.take()
        host, port = door.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        path = slow["seats"][0]["base_url"].removeprefix(door.url)
        writer.write(f"POST {path}/chat/completions HTTP/1.1\r\nHost: localhost\r\n".encode())
        writer.write(f"Authorization: Bearer {slow['seats'][0]['api_key']}\r\n".encode())
        writer.write(b"Content-Length: 1000\r\n\r\n{")
        await writer.drain()
        program = asyncio.create_task(driving(own_kuhn, door.url, token=door.token, at_once=3))
        while len(door.tables._open) > 1:
            await asyncio.sleep(0.05)
        assert not playing.done(), "only the slow client's game is left"
        await door.post(slow["result_url"], slow["result_key"], {"error": "too slow"})
        writer.close()
        results = await playing
    await program
    assert sum(isinstance(result, GameResult) for result in results) == 3
