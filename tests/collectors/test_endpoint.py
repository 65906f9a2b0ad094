"""Endpoints over real HTTP: transient faults are retried, and costs are counted."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError

from tests.helpers.builders import spec
from tests.helpers.collector import Scripted
from tests.helpers.endpoint import Reply, Server, ask, opponent, says
from tests.helpers.loop import make_context
from tests.helpers.mistakes import line_of, refused
from tests.helpers.models import tiny_tokenizer
from tests.helpers.rows import every_row
from tests.helpers.tracking import lines
from unstable.collectors.collector import Collector
from unstable.collectors.players.ledger import Ledger, Spent
from unstable.commands.prepare import check_games
from unstable.config import ConfigError, parse
from unstable.league.schedule import Schedule
from unstable.loop.train import train
from unstable.records.folder import RunFolder
from unstable.rewards.oracles.service import Service
from unstable.types import GameFailure, GameResult, PlayerId, SpentError


@pytest.mark.parametrize(
    "failures",
    [
        [Reply(429, {})],
        [Reply(500, {}), Reply(503, "busy"), Reply(429, {})],
        [Reply(hangs_up=True)],
        [Reply(wait_s=2.0)],
    ],
    ids=["too many", "several", "lost", "slow"],
)
@pytest.mark.fault("an endpoint fails or is busy")
async def test_transient_errors_are_retried(server: Server, failures: Sequence[Reply]) -> None:
    server.replies = [*failures, says("[4]")]
    timeout = 1.0 if failures[0].wait_s else 60.0  # generous without a slow reply
    assert await ask(server, timeout=timeout, max_retries=3) == "[4]"
    assert server.asked == len(failures) + 1


async def test_loopback_requests_bypass_proxies(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Server()
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, proxy.url.removesuffix("/v1"))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "example.org")
    try:
        assert await ask(server) == "[4]"
        judge = Service("reward term http", server.url, "A_KEY", 10_000, "url")
        assert "choices" in await judge.post({})
        await judge.close()
        assert (server.asked, proxy.asked) == (2, 0)
        assert os.environ["no_proxy"] == "example.org,localhost,127.0.0.1,::1"
    finally:
        proxy.close()


def refuses(name: str) -> Reply:
    """Reply of a reasoning model's endpoint that rejects the parameter `name`."""
    error = {"message": f"Unsupported parameter: '{name}'.", "param": name, "code": "unsupported"}
    return Reply(400, {"error": error})


async def test_rejected_parameters_are_omitted(server: Server) -> None:
    server.replies = [refuses("max_tokens"), refuses("temperature"), says("[4]")]
    assert await ask(server, max_tokens=40, model="thinker") == "[4]"
    last = server.bodies[-1]
    assert last["max_completion_tokens"] == 40 and not {"max_tokens", "temperature"} & last.keys()
    await ask(server, max_tokens=40, model="thinker")  # remembered from the first call
    assert server.asked == 4 and server.bodies[-1].keys() == last.keys()
    await ask(server, model="another")
    assert server.bodies[-1].keys() == {"model", "messages", "max_tokens", "temperature"}


async def test_cut_reply_is_logged_once(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    server.replies = [says("[4]", finish="length"), says(None, finish="length")]
    for _ in range(3):
        await ask(server, max_tokens=40, model="ponders")
    (line,) = [record.getMessage() for record in caplog.records if "ponders" in record.getMessage()]
    assert "at max_tokens = 40" in line and line.endswith("raise the opponent's max_tokens")


async def test_rejected_extra_parameter_is_an_error(server: Server) -> None:
    server.replies = [refuses("temperature")]
    with pytest.raises(BadRequestError, match="temperature"):
        await ask(server, model="stubborn", extra={"temperature": 0.5})
    assert server.asked == 2


async def test_extra_parameters_are_sent(server: Server) -> None:
    extra = {"reasoning_effort": "low", "max_completion_tokens": 900, "temperature": None}
    await ask(server, extra=extra)
    (body,) = server.bodies
    assert body.keys() == {"model", "messages", "reasoning_effort", "max_completion_tokens"}
    assert (body["reasoning_effort"], body["max_completion_tokens"]) == ("low", 900)
    entry = {"kind": "openai", "model": "m", "extra": {"messages": []}}
    refused(r"extra\.messages: set by unstable; leave", parse, {"opponents": {"fixed": [entry]}})


@pytest.mark.parametrize("wait", ["0.4", "DATE"])
async def test_retry_after_header_is_respected(server: Server, wait: str) -> None:
    value = formatdate(time.time() + 2, usegmt=True) if wait == "DATE" else wait
    server.replies = [Reply(429, {}, headers={"Retry-After": value}), says("[4]")]
    began = time.monotonic()
    assert await ask(server, max_retries=1) == "[4]"
    assert time.monotonic() - began >= 0.4


async def test_retry_wait_is_bounded_by_turn_timeout(server: Server, tmp_path: Path) -> None:
    server.replies = [Reply(429, {}, headers={"Retry-After": "3600"})]
    playing = collector(server, tmp_path, {"turn_timeout": 1.0}, max_retries=5)
    (failed,) = [each async for each in playing.play([spec(("remote", "random"))])]
    assert isinstance(failed, GameFailure) and "games.turn_timeout = 1 s" in failed.error


async def test_a_redirect_is_not_followed(server: Server, tmp_path: Path) -> None:
    elsewhere = Server()
    try:
        server.replies = [Reply(307, {}, headers={"Location": f"{elsewhere.url}/chat/completions"})]
        with pytest.raises(
            ValueError, match="redirects to .*; redirects are not followed; set base_url"
        ):
            await ask(server)
        assert server.asked == 1 and elsewhere.asked == 0
    finally:
        elsewhere.close()


def collector(
    server: Server, tmp_path: Path, game: dict[str, Any] | None = None, **changes: Any
) -> Collector:
    remote = opponent(server, **changes).model_dump()
    config = parse(
        {
            "games": [{"env": "TicTacToe-v0", "prompt": "answer", **(game or {})}],
            "opponents": {"fixed": [remote]},
            "actors": {"games_in_flight": 2},
        }
    )
    config = config.with_ledgers(RunFolder(tmp_path).endpoint)
    return Collector(config, Scripted(), tiny_tokenizer())


@pytest.mark.parametrize(
    "reply, error",
    [
        (Reply(500, {}), "InternalServerError"),
        (Reply(wait_s=1.0), "APITimeoutError"),
        (Reply(401, {"error": {"message": "no such key"}}), "no such key"),
        (Reply(body={"choices": []}), "sent no chat completion:"),
        (Reply(body={"choices": None}), "sent no chat completion:"),
        (Reply(body=[1, 2]), "sent no chat completion:"),
        (Reply(body="<html>Welcome</html>"), "sent no chat completion: '<html>Welcome</html>'"),
        (says(["[4]"]), "sent no chat completion:"),
    ],
    ids=["500", "slow", "refused", "no choices", "null", "list", "html", "no text"],
)
@pytest.mark.fault("an endpoint fails or is busy")
async def test_permanent_error(server: Server, tmp_path: Path, reply: Reply, error: str) -> None:
    server.replies = [reply]
    timeout = 0.5 if reply.wait_s else 60.0  # generous without a slow reply
    playing = collector(server, tmp_path, timeout=timeout, max_retries=2)
    (failed,) = [each async for each in playing.play([spec(("remote", "random"))])]
    assert isinstance(failed, GameFailure) and failed.spent is None
    assert error in failed.error and "\n" not in failed.error
    assert server.asked == (3 if reply.status == 500 or reply.wait_s else 1)


@pytest.mark.fault("an endpoint stalls or answers garbage")
async def test_an_empty_answer_is_a_forfeit(server: Server, tmp_path: Path) -> None:
    server.replies = [says(None)]
    (result,) = [e async for e in collector(server, tmp_path).play([spec(("remote", "random"))])]
    assert isinstance(result, GameResult) and result.forfeit == 0


@pytest.mark.parametrize("isolated", [False, True])
async def test_max_calls_holds_across_processes(
    server: Server, tmp_path: Path, isolated: bool
) -> None:
    server.replies = [says("[4]"), says("[4]"), says("[4]")]
    for _ in range(2):  # as after a restart or resume
        playing = collector(server, tmp_path, {"isolated": isolated}, max_calls=3)
        specs = [spec(("remote", "random"), game_id=number) for number in range(4)]
        ended = [each async for each in playing.play(specs)]
        await playing.close()
        failures = [each for each in ended if isinstance(each, GameFailure)]
        assert failures and {each.spent for each in failures} == {"remote"}
        assert "max_calls = 3 of opponent 'remote' exhausted after 3 calls" in failures[0].error
    assert server.asked == 3
    (row,) = lines(RunFolder(tmp_path).endpoint("remote"))
    assert row == {"format": 2, "calls": 3, "tokens": 300}


async def test_tokens_are_reserved_and_settled_by_the_reply(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "shared.json"
    settings = {"max_total_tokens": 2000, "max_tokens": 10, "ledger": str(path)}
    server.replies = [says("[4]", tokens=300), says("[4]", tokens=None)]
    await ask(server, **settings)
    ledger = Ledger(opponent(server, **settings))
    assert ledger.spent() == Spent(1, 300)
    await ask(server, **settings)  # an endpoint without token counts
    calls, tokens = ledger.spent()
    assert calls == 2 and 300 + 10 < tokens < 2000
    with pytest.raises(SpentError, match="max_total_tokens = 2000 of opponent 'remote' exhausted"):
        while True:
            await ask(server, **settings)
    assert ledger.spent().tokens <= 2000 and ledger.spent().calls == server.asked
    long = settings | {"extra": {"max_tokens": 4000}, "ledger": str(tmp_path / "other.json")}
    with pytest.raises(SpentError):
        await ask(server, **long)


def test_concurrent_calls_cannot_exceed_cap(server: Server, tmp_path: Path) -> None:
    capped = opponent(server, max_calls=50, ledger=str(tmp_path / "x.json"))

    def reserve(_: int) -> bool:
        try:
            Ledger(capped).reserve(7)
        except SpentError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(reserve, range(80))) == 50
    assert Ledger(capped).spent() == Spent(50, 350)


async def test_uncapped_opponent_has_no_ledger(server: Server, tmp_path: Path) -> None:
    await ask(server, ledger=str(tmp_path / "x.json"))
    assert not (tmp_path / "x.json").exists()


async def test_run_continues_without_exhausted_opponent(
    tiny_folder: Path, tmp_path: Path, server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    remote = opponent(server, max_calls=4, ledger=str(tmp_path / "calls.json")).model_dump()
    context = make_context(
        tiny_folder,
        folder,
        opponents={"fixed": [remote], "draw": {"self": 0.2, "past": 0, "fixed": 0.8}},
        eval={"every": 2, "games": 2, "opponents": ["remote", "random"]},
        loop={"mode": "sync", "steps": 2, "max_failures": 0},
    )
    assert await train(context) == "all updates made"
    assert server.asked == 4
    assert context.schedule.leave_out("remote") is False, "already left out"
    drawn = [one for _ in range(20) for one in context.schedule.draw_group(PlayerId.policy(2), [])]
    assert {seat.player.name for game in drawn for seat in game.seats} == {"main@2"}
    context.tracker.close()
    assert capsys.readouterr().out.count("max_calls = 4 of opponent 'remote' exhausted") == 1


def test_remaining_opponent_replaces_exhausted_one(server: Server) -> None:
    fixed = [{"kind": "random"}, opponent(server).model_dump()]
    schedule = Schedule(parse({"opponents": {"fixed": fixed, "draw": {"self": 0, "past": 0}}}))
    assert schedule.leave_out("remote") is True
    drawn = [game for _ in range(20) for game in schedule.draw_group(PlayerId.policy(0), [])]
    assert {seat.player.name for game in drawn for seat in game.seats} == {"main@0", "random"}


@pytest.mark.parametrize(
    "setting, words",
    [
        ({"ledger": "/proc/no/such.json"}, "opponents.fixed.0.ledger = '/proc/no/such.json': inv"),
        ({"ledger": "PAGE"}, "invalid ledger ("),
    ],
)
def test_unusable_ledger_is_rejected(
    server: Server, tmp_path: Path, setting: dict[str, str], words: str
) -> None:
    page = tmp_path / "page.html"
    page.write_text("<html>")
    if setting["ledger"] == "PAGE":
        setting = {"ledger": str(page)}
    config = parse({"opponents": {"fixed": [opponent(server, **setting).model_dump()]}})
    assert words in line_of(check_games, config)
    assert page.read_text() == "<html>"


@every_row(
    "setting", {"timeout": 0}, {"max_retries": -1}, {"max_calls": 0}, {"max_total_tokens": 0.5}
)
def test_invalid_caps_and_timeouts_are_rejected(setting: dict[str, Any]) -> None:
    (name,) = setting
    entry = {"kind": "openai", "model": "m", **setting}
    with pytest.raises(ConfigError, match=rf"^opponents\.fixed\.0\.(openai\.)?{name}[^\n]*$"):
        parse({"opponents": {"fixed": [entry]}})
