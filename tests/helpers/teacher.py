"""A server whose completions give a prompt's log-probabilities, as the embedded engine has them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.helpers.models import tiny_model, tiny_tokenizer
from unstable.engines.embedded.engine import EmbeddedEngine


def tiny_engine() -> EmbeddedEngine:
    """Serves the random tiny model."""
    return EmbeddedEngine(tiny_model(), stop_token_ids=[0])


@asynccontextmanager
async def teacher_at(engine: EmbeddedEngine) -> AsyncIterator[str]:
    """The URL of the server, as long as it serves; a request's model is an adapter, or base."""
    tokenizer = tiny_tokenizer()

    async def completion(body: dict[str, Any]) -> dict[str, Any]:
        assert body["echo"] and body["logprobs"] == 1 and body["max_tokens"] == 1
        ids, adapter = body["prompt"], None if body["model"] == "base" else body["model"]
        (logprobs,) = await engine.score(ids[:1], [ids[1:]], adapter=adapter)
        tokens = [str(tokenizer.decode([each])) for each in [*ids, ids[0]]]
        # The last one belongs to the requested token.
        found = {"tokens": tokens, "token_logprobs": [None, *logprobs, -0.5]}
        return {"choices": [{"index": 0, "text": "".join(tokens), "logprobs": found}]}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        assert head.startswith("post /v1/completions ")
        length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
        reply = json.dumps(await completion(json.loads(await reader.readexactly(length)))).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\n")
        writer.write(f"Content-Length: {len(reply)}\r\n\r\n".encode() + reply)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
