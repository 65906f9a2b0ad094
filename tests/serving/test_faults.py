"""A slow, absent or greedy client costs no other anything; a dead engine is reported."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest

from tests.helpers.serving import HI, Endpoint, Says, endpoint, served_config
from unstable.engines.base import EngineDiedError
from unstable.serving import app, models, server
from unstable.serving.requests import ApiError

ASKED: dict[str, Any] = {"model": "base", "messages": HI, "max_tokens": 40}


async def until(is_so: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not is_so():
            await asyncio.sleep(0.01)


async def opened(
    served: Endpoint, body: dict[str, Any], promised: int | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection and send a chat, or the start of one that is `promised` bytes long."""
    text = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port, limit=2**24)
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {promised or len(text)}\r\n\r\n"
    )
    writer.write(head.encode() + text)
    await writer.drain()
    return reader, writer


async def close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def is_running(engine: Says, number: int) -> bool:
    return engine.running == number


def talkative(tick_s: float = 0.01) -> Says:
    return Says(lambda seed: [5 + seed % 7] * 500, tick_s)


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
async def test_disconnected_client_frees_its_slot(is_streamed: bool) -> None:
    engine = talkative(0.2)
    async with endpoint(engine=engine) as served:
        for n in (1, 3):
            _, writer = await opened(served, {**ASKED, "stream": is_streamed, "n": n})
            await until(partial(is_running, engine, n))
            await close(writer)
            await until(lambda: engine.running == 0)
        assert engine.given_up == 4
        await until(lambda: served.seat.counts.left == 2)
        assert served.seat.counts.in_flight == 0


async def test_result_for_a_client_that_has_just_left_is_not_taken() -> None:
    async def receive() -> dict[str, str]:
        return {"type": "http.disconnect"}

    http: Any = SimpleNamespace(receive=receive)
    asked = asyncio.get_running_loop().create_future()
    asked.set_result("a game")
    with pytest.raises(ApiError, match="the client disconnected"):
        await app.unless_gone(http, asked)


async def test_client_that_closes_its_stream_frees_its_slot(tiny_folder: Path) -> None:
    """When a client leaves a stream, the real engine answers the request that waits behind it."""
    config = served_config(
        model={"name": str(tiny_folder), "dtype": "float32", "adapter": {"rank": 4}},
        actors={"games_in_flight": 1},
        sampling={"max_tokens": 4000, "max_prompt_tokens": 90},
    )
    async with endpoint(config) as served, served.client() as client:
        asked = ASKED | {"max_tokens": 4000, "temperature": 2.0}
        stream = await client.chat.completions.create(**asked, stream=True, seed=1)
        await anext(stream)
        later = asyncio.create_task(client.chat.completions.create(**{**ASKED, "max_tokens": 2}))
        await until(lambda: served.engine.stats()["waiting"] == 1)
        await stream.close()
        assert (await later).usage.completion_tokens <= 2
        assert served.engine.stats()["running"] == 0


async def test_client_that_never_reads_does_not_block_others() -> None:
    async with endpoint(engine=talkative(0.0), config=big()) as served, served.client() as client:
        body = {**ASKED, "stream": True, "max_tokens": 500, "logprobs": True, "top_logprobs": 2}
        stuck = [await opened(served, body) for _ in range(4)]
        for _, writer in stuck:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
        for seed in range(8):
            reply = await client.chat.completions.create(**{**ASKED, "seed": seed})
            assert reply.usage.completion_tokens == 40
        await until(lambda: served.seat.counts.in_flight == 0)  # slow readers hold no slot
        for reader, writer in stuck:
            writer.transport.resume_reading()  # type: ignore[attr-defined]
            assert (await reader.readuntil(b"[DONE]")).count(b'"content"') >= 500
            await close(writer)


def big() -> Any:
    return served_config(sampling={"max_prompt_tokens": 128, "max_tokens": 512})


async def test_slow_request_body_does_not_block_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_BODY_S", 1)
    async with endpoint(engine=talkative()) as served, served.client() as client:
        length = len(json.dumps(ASKED).encode()) + 50
        slow = [await opened(served, ASKED, promised=length) for _ in range(5)]
        began = time.monotonic()
        for index in range(3):
            slow[0][1].write(b" ")  # one byte at a time
            reply = await client.chat.completions.create(**ASKED | {"max_tokens": 2, "seed": index})
            assert reply.usage.completion_tokens == 2
        assert time.monotonic() - began < 10
        for reader, writer in slow:
            assert b" 408 " in await reader.readline()
            await close(writer)
        assert served.seat.counts.asked == 3


async def test_incomplete_header_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_HEADER_S", 0.3)
    async with endpoint(engine=talkative()) as served, served.client() as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.server.port)
        for text in (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"POST /v1/chat/co"):
            writer.write(text)
            if text.startswith(b"GET"):
                assert b'"ok"' in await reader.readuntil(b"}")
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        await close(writer)
        # The timeout applies to headers, not to answers.
        reply = await client.chat.completions.create(**ASKED)
        assert reply.usage.completion_tokens == 40


async def test_connections_over_limit_are_rejected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(server, "most_connections", lambda: 4)
    monkeypatch.setattr(server._Protocol, "_said_s", -1e9)
    async with endpoint(engine=talkative()) as served, served.client() as client:
        port = served.server.port
        opened = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert b" 503 " in await reader.readline()
            await close(writer)
        assert caplog.text.count("more than 4 connections; rejecting new ones") == 1
        for _, writer in opened:
            await close(writer)
        await asyncio.sleep(0.1)
        assert (await client.chat.completions.create(**ASKED)).usage.completion_tokens == 40


async def test_foreign_host_header_is_rejected() -> None:
    async with endpoint(engine=talkative()) as served, httpx.AsyncClient() as client:
        port = served.server.port
        for host, status in (
            *(("evil.com", 421), (f"evil.com:{port}", 421), ("127.0.0.1.evil.com", 421), ("", 421)),
            *((f"LOCALHOST:{port}", 200), ("127.0.0.1", 200), (f"[::1]:{port}", 200)),
        ):
            reply = await client.get(f"{served.url}/models", headers={"Host": host})
            assert reply.status_code == status, host


async def test_long_prompt_does_not_block_other_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    may_end = threading.Event()
    encoded = models.encoded

    def slow(template: Any, request: Any) -> Any:
        assert request.characters < 10_000 or may_end.wait(30)
        return encoded(template, request)

    monkeypatch.setattr(models, "encoded", slow)
    async with endpoint(engine=talkative()) as served, served.client() as client:
        long = {**ASKED, "messages": [{"role": "user", "content": "x" * 100_000}]}
        asked = [asyncio.create_task(client.chat.completions.create(**long)) for _ in range(3)]
        await until(lambda: served.seat.counts.in_flight == 3)
        assert (await client.chat.completions.create(**ASKED)).usage.completion_tokens == 40
        may_end.set()
        for each in await asyncio.gather(*asked, return_exceptions=True):
            assert "exceed the context of 256 tokens" in str(each)


async def test_request_over_queue_limit_gets_429_with_retry_after() -> None:
    engine = talkative(0.02)
    async with endpoint(engine=engine) as served, served.client() as client:
        most = 5 * 4  # games_in_flight, running and waiting
        many = [
            asyncio.create_task(client.chat.completions.create(**{**ASKED, "max_tokens": 30}))
            for _ in range(most)
        ]
        await until(lambda: engine.running == most)
        with pytest.raises(openai.RateLimitError) as refused:
            await client.chat.completions.create(**ASKED)
        assert refused.value.response.headers["retry-after"] == "1"
        assert refused.value.body["type"] == "rate_limit_error"  # type: ignore[index]
        for reply in await asyncio.gather(*many):
            assert reply.usage.completion_tokens == 30
        assert (await client.chat.completions.create(**ASKED)).choices[0].finish_reason == "length"
        counts = served.seat.counts
        assert (counts.asked, counts.answered, counts.refused) == (most + 2, most + 1, 1)


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
async def test_dead_engine_is_reported_to_clients_and_server(is_streamed: bool) -> None:
    engine = talkative(0.02)
    async with endpoint(engine=engine) as served, served.client() as client:
        asked = asyncio.create_task(finished(client, is_streamed))
        await until(lambda: engine.running == 1)
        await asyncio.sleep(0.1)
        engine.error = EngineDiedError("it was killed")
        assert "the engine has died" in str(await asked)
        with pytest.raises(openai.InternalServerError) as later:
            await client.chat.completions.create(**ASKED)
        assert later.value.status_code == 503
        assert served.seat.died.is_set() and served.seat.why == "it was killed"


async def finished(client: openai.AsyncOpenAI, is_streamed: bool) -> Exception:
    """Return the error with which a chat fails, at its start or in the middle."""
    with pytest.raises(openai.APIError) as found:
        if not is_streamed:
            await client.chat.completions.create(**ASKED)
        async for _ in await client.chat.completions.create(**ASKED, stream=True):
            pass
    return found.value


async def test_failed_request_does_not_affect_others(caplog: pytest.LogCaptureFixture) -> None:
    engine = talkative()
    async with endpoint(engine=engine) as served, served.client() as client:
        engine.error = RuntimeError("secret details")
        with pytest.raises(openai.InternalServerError) as failed:
            await client.chat.completions.create(**ASKED, n=2)
        assert failed.value.status_code == 500 and "secret" not in str(failed.value)
        assert "secret details" in caplog.text and not served.seat.died.is_set()
        engine.error = ValueError("the engine does not take this")
        with pytest.raises(openai.BadRequestError, match="does not take this"):
            await client.chat.completions.create(**ASKED, n=2)
        engine.error = None
        assert (await client.chat.completions.create(**ASKED, n=2)).usage.completion_tokens == 80
        await until(lambda: engine.running == 0)


async def test_server_answers_requests_in_flight_before_closing() -> None:
    engine = talkative(0.01)
    async with endpoint(engine=engine) as served, served.client() as client:
        asked = asyncio.create_task(client.chat.completions.create(**ASKED))
        await until(lambda: engine.running == 1)
        await served.server.close()
        assert (await asked).usage.completion_tokens == 40
