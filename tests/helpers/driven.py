"""An actor whose games programs play, and how these see it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.helpers.loop import make_actor
from unstable.config import parse
from unstable.records.folder import RunFolder
from unstable.runtime.local import LocalActor

DRIVEN: dict[str, Any] = {
    "model": {"name": "tiny_cards", "init": "fresh", "dtype": "float32"},
    "games": [{"env": "driver", "name": "Kuhn", "payoff_scale": 2, "turn_timeout": 20}],
    "opponents": {"draw": {"self": 1, "past": 0, "fixed": 0}, "fixed": []},
    "sampling": {"max_tokens": 6},
    "actors": {"games_in_flight": 4, "engine": "embedded"},
    "seed": 7,
}
"""An actor's config; port 0 is any that is free."""


class Door:
    """Where an actor's games are taken."""

    def __init__(self, actor: LocalActor) -> None:
        driving = actor.collector.driving
        assert driving is not None and driving.server is not None and driving.tables is not None
        self.url, self.token = driving.server.url, driving.tables.token
        self.tables = driving.tables

    async def post(self, path: str, key: str | None, body: Any = None) -> httpx.Response:
        """The answer to a request, whatever it is."""
        url = path if path.startswith("http") else f"{self.url}{path}"
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:
            return await client.post(url, headers=headers, json=body or {}, timeout=30)

    async def take(self) -> dict[str, Any]:
        """A game, as it is told of."""
        reply = await self.post("/games", self.token)
        assert reply.status_code == 200, reply.text
        told: dict[str, Any] = reply.json()
        return told

    async def ask(self, seat: dict[str, str], text: str, **more: Any) -> httpx.Response:
        """What a seat answers."""
        messages = [{"role": "user", "content": text}]
        body = {"model": "any", "messages": messages, **more}
        return await self.post(f"{seat['base_url']}/chat/completions", seat["api_key"], body)


@asynccontextmanager
async def driven_actor(folder: Path, **changes: Any) -> AsyncIterator[LocalActor]:
    """An actor of this process whose games are driven, or as `changes` say."""
    actor = make_actor(parse(DRIVEN | changes), RunFolder(folder))
    await actor.collector.start()
    try:
        yield actor
    finally:
        await actor.close()
