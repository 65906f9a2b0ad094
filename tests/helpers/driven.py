"""An actor whose games programs play, and how these see it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.helpers.collector import specs
from tests.helpers.loop import make_actor
from unstable.config import parse
from unstable.records.folder import RunFolder
from unstable.runtime.local import LocalActor
from unstable.types import GameFailure, GameResult, GameSpec

DRIVEN: dict[str, Any] = {
    "model": {"name": "tiny_cards", "init": "fresh", "dtype": "float32"},
    "games": [{"env": "driver", "name": "Kuhn", "payoff_scale": 2, "turn_timeout": 20}],
    "opponents": {"draw": {"self": 1, "past": 0, "fixed": 0}, "fixed": []},
    "sampling": {"max_tokens": 6},
    "actors": {"games_in_flight": 4, "engine": "embedded"},
    "seed": 7,
}
"""Config of an actor; port 0 means any free port."""

GAME = DRIVEN["games"][0]
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]


class Door:
    """A client of the server from which programs take an actor's games."""

    def __init__(self, actor: LocalActor) -> None:
        driving = actor.collector.driving
        assert driving is not None and driving.server is not None and driving.tables is not None
        self.url, self.token = driving.server.url, driving.tables.token
        self.tables = driving.tables

    async def post(self, path: str, key: str | None, body: Any = None) -> httpx.Response:
        """Send a request and return the response, whether success or error."""
        url = path if path.startswith("http") else f"{self.url}{path}"
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        async with httpx.AsyncClient(trust_env=False, verify=False) as client:
            return await client.post(url, headers=headers, json=body or {}, timeout=30)

    async def take(self) -> dict[str, Any]:
        """Take a game and return its description."""
        reply = await self.post("/games", self.token)
        assert reply.status_code == 200, reply.text
        told: dict[str, Any] = reply.json()
        return told

    async def ask(self, seat: dict[str, str], text: str, **more: Any) -> httpx.Response:
        """Request a seat's answer to a text."""
        body = {"model": "any", "messages": [{"role": "user", "content": text}], **more}
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


def kuhn_specs(count: int, **changes: Any) -> list[GameSpec]:
    return specs(count, players=("base", "base"), env="Kuhn", **changes)


async def all_of(actor: LocalActor, games: list[GameSpec]) -> list[GameResult | GameFailure]:
    return [result async for result in actor.play(games)]


@dataclass
class Open:
    """An actor that plays one game, and the program's view of it."""

    door: Door
    told: dict[str, Any]
    playing: asyncio.Task[list[GameResult | GameFailure]]

    async def end(self, **said: Any) -> httpx.Response:
        """Post a game's result."""
        return await self.door.post(self.told["result_url"], self.told["result_key"], said)

    async def failure(self) -> str:
        """Return the reason of the game's failure."""
        (found,) = await self.playing
        assert isinstance(found, GameFailure)
        return found.error

    async def result(self) -> GameResult:
        """Wait for the game's result; fails on a failed game."""
        (found,) = await self.playing
        assert isinstance(found, GameResult), found.error
        return found


@asynccontextmanager
async def one_game(folder: Path, **changes: Any) -> AsyncIterator[Open]:
    """Unfinished game that a program has taken."""
    async with driven_actor(folder, **changes) as actor:
        playing = asyncio.create_task(all_of(actor, kuhn_specs(1)))
        door = Door(actor)
        yield Open(door, await door.take(), playing)
        playing.cancel()
        await asyncio.wait([playing])
