"""Client for programs that play a run's games themselves: take a game, query seats, post results.

    async def play(game):                      # a hand of any game, in your own code
        reply = await game.ask(0, [{"role": "user", "content": "Heads or tails?"}])
        won = reply["content"] == "heads"
        return [1, -1] if won else [-1, 1]

    unstable.drivers.drive(play, "http://127.0.0.1:8100", at_once=64)

A run starts `python -m unstable.drivers` for a game with `env: driver:MODULE:CLASS`. Programs in
other languages use the HTTP interface directly (docs/drivers.md).
"""

import asyncio
import importlib
import inspect
import json
import math
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx

TOKEN = "UNSTABLE_DRIVER_TOKEN"
"""Environment variable with the token of a run that requires one."""
_ANSWER_S = 600.0  # maximum seconds until a seat's answer
_TOLD_S = 15.0  # seconds between status lines while no run answers
_PAUSE_S = 0.5
_MOST_REASON = 300  # characters


class SeatAddress(NamedTuple):
    """Address and key of a seat for an OpenAI client."""

    base_url: str
    api_key: str


@dataclass(frozen=True, slots=True)
class OpenGame:
    """A game to be played by the program."""

    id: str
    env: str  # the game's name in the run
    seed: int  # seeds all randomness of the game; shared by the games of a group
    purpose: str  # train or eval
    args: dict[str, Any]  # games.N.args of the run's config
    seats: list[SeatAddress]
    client: httpx.AsyncClient

    async def ask(self, seat: int, messages: Sequence[Any], **more: Any) -> dict[str, Any]:
        """Return a seat's answer to a chat: a message with `content` and, if any, `tool_calls`.

        `more` are additional fields of the request: `tools`, `max_tokens`, `legal_moves` (for a
        random player). Raises `httpx.HTTPStatusError` if the seat refuses the request.
        """
        address = self.seats[seat]
        reply = await self.client.post(
            f"{address.base_url}/chat/completions",
            headers={"Authorization": f"Bearer {address.api_key}"},
            json={"model": "seat", "messages": list(messages), **more},
            timeout=_ANSWER_S,
        )
        _raise_for(reply)
        message: dict[str, Any] = reply.json()["choices"][0]["message"]
        return message


Play = Callable[[OpenGame], Awaitable[Any] | Any]
"""Plays a game; returns the payoffs by seat, or a mapping with more fields (docs/drivers.md)."""


def drive(
    play: Play,
    url: str,
    *,
    at_once: int = 1,
    token: str | None = None,
    env: str | None = None,
    patience_s: float = math.inf,
) -> int:
    """Play the games of the run at `url` until the run ends; return the number of games played.

    With `env`, play only the game of that name. `at_once` games are played concurrently; a `play`
    that is not a coroutine function runs in threads. If `play` raises, the game has failed and the
    next one is taken. While no run answers, `drive` waits and prints a line every 15 s. Raises
    `ConnectionError` if no run answers within `patience_s` seconds, `PermissionError` if the run
    refuses the token.
    """
    return asyncio.run(
        driving(play, url, at_once=at_once, token=token, env=env, patience_s=patience_s)
    )


async def driving(
    play: Play,
    url: str,
    *,
    at_once: int = 1,
    token: str | None = None,
    env: str | None = None,
    patience_s: float = math.inf,
    driver: str = "",
) -> int:
    """Play games like `drive`, within an event loop; only a run itself passes `driver`."""
    wanted = {"driver": driver} if env is None else {"driver": driver, "env": env}
    secure = httpx.create_ssl_context() if url.startswith("https:") else False

    async def one() -> int:
        # One client per concurrent game: a shared one searches all its connections at each request.
        async with httpx.AsyncClient(trust_env=False, verify=secure) as client:
            made = _Driver(play, url.rstrip("/"), token, wanted, client, patience_s)
            return await made.run()

    return sum(await asyncio.gather(*(one() for _ in range(at_once))))


class _Driver:
    def __init__(
        self,
        play: Play,
        url: str,
        token: str | None,
        wanted: dict[str, str],
        client: httpx.AsyncClient,
        patience_s: float,
    ) -> None:
        self._patience_s = patience_s
        self._play, self._url, self._wanted, self._client = play, url, wanted, client
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._met = False  # the run has answered once

    async def run(self) -> int:
        """Play one game after another until the run ends; return the number of games played."""
        played = 0
        while (game := await self._take()) is not None:
            url, key, open_game = game
            result = await self._result(open_game)
            reply = await self._client.post(
                url, headers={"Authorization": f"Bearer {key}"}, json=result, timeout=_ANSWER_S
            )
            if reply.is_error:
                _say(f"game {open_game.id} of {open_game.env}: {_reason(reply)}")
            if reply.status_code == 400:  # `play` returned an invalid result
                error = {"error": _reason(reply)}
                await self._client.post(url, headers=reply.request.headers, json=error)
            played += 1
        return played

    async def _take(self) -> tuple[str, str, OpenGame] | None:
        """Return result URL, key and game of the next game; None once the run has ended."""
        silent = 0.0
        while True:
            try:
                reply = await self._client.post(
                    f"{self._url}/games",
                    headers=self._headers,
                    json=self._wanted,
                    timeout=_ANSWER_S,
                )
            except httpx.TransportError as error:
                if self._met:
                    return None
                if silent >= self._patience_s:
                    raise ConnectionError(f"no run answers at {self._url}: {error}") from None
                if silent and silent % _TOLD_S == 0:
                    _say(f"no run answers at {self._url} after {silent:g} s; retrying")
                silent += _PAUSE_S
                await asyncio.sleep(_PAUSE_S)
                continue
            if reply.status_code == 401:
                raise PermissionError(f"the run at {self._url} rejected the token; pass its token")
            if reply.status_code == 410:
                return None
            _raise_for(reply)
            self._met = True
            if reply.status_code == 200:
                return self._opened(reply.json())

    def _opened(self, told: dict[str, Any]) -> tuple[str, str, OpenGame]:
        game = OpenGame(
            id=told["game"],
            env=told["env"],
            seed=told["seed"],
            purpose=told["purpose"],
            args=told["args"],
            seats=[SeatAddress(each["base_url"], each["api_key"]) for each in told["seats"]],
            client=self._client,
        )
        return told["result_url"], told["result_key"], game

    async def _result(self, game: OpenGame) -> Mapping[str, Any]:
        """Return the result of playing a game, or `{"error": ...}` if the program raised."""
        try:
            if inspect.iscoroutinefunction(self._play):
                found = await self._play(game)
            else:
                found = await asyncio.to_thread(self._play, game)
                if inspect.isawaitable(found):
                    found = await found
            said = found if isinstance(found, Mapping) else {"payoffs": list(found)}
            json.dumps(said)  # a result that cannot be sent fails only this game
            return said
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"[:_MOST_REASON]}


def _raise_for(reply: httpx.Response) -> None:
    if reply.is_error:
        text = f"{reply.status_code} from {reply.request.url.path}: {_reason(reply)}"
        raise httpx.HTTPStatusError(text, request=reply.request, response=reply)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _reason(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["error"]["message"])[:_MOST_REASON]
    except (ValueError, KeyError, TypeError):
        return reply.text[:_MOST_REASON]


def load_play(target: str, args: Mapping[str, Any]) -> Play:
    """Return the `play` method of a `module:Class`, created with `args`, or a `module:function`."""
    module, _, name = target.partition(":")
    found: Any = getattr(importlib.import_module(module), name)
    made = found(**args).play if isinstance(found, type) else found
    play: Play = made
    return play


def _end_with_parent() -> None:
    """End this process with its parent, which holds the other end of the standard input."""
    while os.read(0, 1024):
        pass
    os._exit(0)


def main(target: str, url: str, at_once: str, args: str, driver: str) -> None:
    """Play a run's games until it ends; the entry point of the process that a run starts."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.path.insert(0, os.getcwd())
    play, token = load_play(target, json.loads(args)), os.environ.get(TOKEN)
    asyncio.run(driving(play, url, at_once=int(at_once), token=token, driver=driver))


if __name__ == "__main__":
    main(*sys.argv[1:])
