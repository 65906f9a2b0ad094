"""Servers of games for OpenEnv clients, in this process."""

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import websockets

from unstable.collectors.play import PlayerFactory
from unstable.commands.play.casting import PlayerSource, for_games
from unstable.config import load
from unstable.games.check import settled
from unstable.records.folder import RunFolder
from unstable.serving.server import Server
from unstable.studies.openenv.games import ClientGames
from unstable.studies.openenv.protocol import openenv_application
from unstable.studies.openenv.serving import opponents_of

PROGRAMS = ("random", "expert")


@contextlib.asynccontextmanager
async def serving(
    folder: Path,
    words: Sequence[str] = PROGRAMS,
    *,
    token: str | None = None,
    in_flight: int = 64,
    **changes: Any,
) -> AsyncIterator[tuple[Server, ClientGames]]:
    """Serve the games of `tiny_kuhn` against programs, which need no model."""
    given = load("tiny_kuhn", {"seed": 5, "actors.games_in_flight": in_flight, **changes})
    opponents = opponents_of(given, None, [], words)
    known = [each for each in opponents.values() if each is not None]
    config = for_games(given, [settled(game) for game in given.games], known)
    folder.mkdir(exist_ok=True)
    source = PlayerSource(config, PlayerFactory(config, None, None), None)
    games = ClientGames(config, source, opponents, RunFolder(folder))
    application = openenv_application(games, token)
    server = await Server(application, "127.0.0.1", 0, websockets=True).start()
    try:
        yield server, games
    finally:
        await server.close()


@contextlib.contextmanager
def served_beside(
    folder: Path, *, in_flight: int = 64, token: str | None = None
) -> Iterator[tuple[str, ClientGames]]:
    """Serve in another thread, and yield the URL: a blocking client needs that."""
    started, loop, over = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
    found: list[tuple[str, ClientGames]] = []

    async def main() -> None:
        async with serving(folder, in_flight=in_flight, token=token) as (server, games):
            found.append((server.url, games))
            started.set()
            await over.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(main()))
    thread.start()
    assert started.wait(30)
    try:
        yield found[0]
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join(30)


class Client:
    """A session of a client that speaks the protocol itself."""

    def __init__(self, socket: Any) -> None:
        self.socket = socket

    async def ask(self, message: Any) -> dict[str, Any]:
        """Send a message, a text unchanged, and return the answer."""
        await self.socket.send(message if isinstance(message, str) else json.dumps(message))
        answer: dict[str, Any] = json.loads(await asyncio.wait_for(self.socket.recv(), 30))
        return answer

    async def reset(self, **data: Any) -> dict[str, Any]:
        """Return the data of a reset's answer, which must be an observation."""
        return await self._seen({"type": "reset", "data": data})

    async def step(self, message: str) -> dict[str, Any]:
        """Return the data of a step's answer, which must be an observation."""
        return await self._seen({"type": "step", "data": {"message": message}})

    async def _seen(self, message: dict[str, Any]) -> dict[str, Any]:
        answer = await self.ask(message)
        assert answer["type"] == "observation", answer
        data: dict[str, Any] = answer["data"]
        return data

    async def play(self, choose: Any = lambda moves: moves[0], **data: Any) -> list[dict[str, Any]]:
        """Play a game to its end and return all answers' data."""
        seen = [await self.reset(**data)]
        while not seen[-1]["done"]:
            seen.append(await self.step(choose(seen[-1]["observation"]["legal_moves"])))
        return seen


@contextlib.asynccontextmanager
async def client(server: Server, **headers: str) -> AsyncIterator[Client]:
    """Connect to a server."""
    url = f"{server.url.replace('http', 'ws')}/ws"
    async with websockets.connect(url, additional_headers=headers, proxy=None) as socket:
        yield Client(socket)
