"""Actors of this process that die after so many games, and what they are to play."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ray.exceptions import RayActorError

from tests.helpers.loop import make_actor
from unstable.config import RunConfig, parse
from unstable.runtime.stream import Part, Playing
from unstable.types import BASE, GameResult, GameSpec, PlayerId, SeatSpec


class Mortal:
    """An actor of this process, which dies after so many results of its calls of `play`."""

    dies_after: list[int] = []  # of each that is made

    def __init__(self, _: type, arguments: tuple[Any, ...], *__: Any, **___: Any) -> None:
        config, folder, _ = arguments
        self.left = self.dies_after.pop(0) if self.dies_after else 10**9
        self._actor = make_actor(config, folder)
        sync = config.loop.mode == "sync"
        self._playing = Playing(lambda: self._actor.collector, tells_state=sync)
        self.actor = SimpleNamespace(
            begin=SimpleNamespace(remote=lambda calls: self._playing.begin(calls, nullcontext)),
            stop=SimpleNamespace(remote=self._playing.stop),
            ended=SimpleNamespace(remote=self._ended),
        )

    async def start(self) -> int:
        return 1

    def kill(self) -> None:
        pass

    async def call(self, method: str, *arguments: object) -> Any:
        if self.left <= 0:
            raise RayActorError
        return await getattr(self._actor, method)(*arguments)

    async def _ended(self) -> AsyncIterator[Awaitable[list[Part]]]:
        async for parts in self._playing.ended():
            given: list[Part] = []
            for number, part in parts:
                dies = self.left <= 0
                if isinstance(part, list):
                    given.append((number, part[: max(0, self.left)]))
                    self.left -= len(part)
                    dies = self.left < 0
                if dies:
                    yield ready(given)
                    raise RayActorError
                if not isinstance(part, list):
                    given.append((number, part))
            yield ready(given)


def ready(value: object) -> Awaitable[Any]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future


def group(first: int, size: int) -> list[GameSpec]:
    seat = SeatSpec(player=BASE, temperature=1.0, group_id=first, group_size=size)
    other = SeatSpec(player=PlayerId("random"), temperature=1.0)
    return [
        GameSpec(
            game_id=first + member,
            env="TicTacToe-v0",
            seed=first,
            seats=(seat, other),
            purpose="train",
            member=member,
        )
        for member in range(size)
    ]


def content(calls: list[list[GameResult]]) -> list[list[Any]]:
    """All of the games but how long they took."""
    return [
        [
            (each.spec, each.outcomes, [replace(turn, seconds=0.0) for turn in each.turns])
            for each in results
        ]
        for results in calls
    ]


def config_of(tiny_folder: Path, **changes: Any) -> RunConfig:
    data = {
        "model": {"name": str(tiny_folder), "dtype": "float32", "init": "fresh"},
        "sampling": {"max_tokens": 4},
        "actors": {"num": 1, "games_in_flight": 6, "engine": "embedded"},
        "loop": {"mode": "sync"},
        **changes,
    }
    return parse(data)
