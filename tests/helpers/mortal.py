"""In-process actors that die after a set number of results, and games for them to play."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ray.exceptions import RayActorError

from tests.helpers.loop import make_actor
from unstable.config import RunConfig, parse
from unstable.loop.ended import Ended
from unstable.runtime.playing import Playing
from unstable.runtime.stream import Over, Part
from unstable.types import GameSpec, PlayedGame, PlayerId, SeatSpec, Trajectory, Unwritable


class Mortal:
    """An in-process actor that dies after a set number of results, the next of `dies_after`."""

    dies_after: list[int] = []  # results before death, by actor

    def __init__(self, _: type, arguments: tuple[Any, ...], *__: Any, **___: Any) -> None:
        config, folder, _ = arguments
        self.left = self.dies_after.pop(0) if self.dies_after else 10**9
        self._actor = make_actor(config, folder)
        sync = config.loop.mode == "sync"
        self._playing = Playing(lambda: self._actor, tells_state=sync)
        self.actor = SimpleNamespace(
            begin=SimpleNamespace(remote=lambda asked: self._playing.begin(asked, nullcontext)),
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
                if isinstance(part, Over):
                    count = 1
                else:
                    count = len(part.games if isinstance(part, Ended) else part)
                if count > self.left:  # messages are not split
                    yield ready(given)
                    raise RayActorError
                self.left -= 0 if isinstance(part, Over) else count
                given.append((number, part))
            yield ready(given)


def ready(value: object) -> Awaitable[Any]:
    future = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return future


def group(first: int, size: int) -> list[GameSpec]:
    seat = SeatSpec(player=PlayerId.policy(0), temperature=1.0, group_id=first, group_size=size)
    other = SeatSpec(player=PlayerId("random"), temperature=1.0)
    same: dict[str, Any] = {"env": "TicTacToe-v0", "seed": first, "purpose": "train"}
    return [
        GameSpec(game_id=first + member, seats=(seat, other), member=member, **same)
        for member in range(size)
    ]


def content(calls: list[list[PlayedGame]]) -> list[list[Any]]:
    """Return the games without their durations."""
    return [
        [(each.spec, each.outcomes, _turns(each), opened(each)) for each in finished]
        for finished in calls
    ]


def _turns(game: PlayedGame) -> list[Any]:
    assert not isinstance(game.line, Unwritable)
    turns = json.loads(game.line)["turns"]
    return [turn | {"seconds": 0} for turn in turns]


def opened(game: PlayedGame) -> list[Trajectory]:
    return [each.opened() for each in game.trajectories]


def config_of(tiny_folder: Path, **changes: Any) -> RunConfig:
    data = {
        "model": {"name": str(tiny_folder), "dtype": "float32", "init": "fresh"},
        "sampling": {"max_tokens": 4},
        "actors": {"num": 1, "games_in_flight": 6, "engine": "embedded"},
        "loop": {"mode": "sync"},
        **changes,
    }
    return parse(data)
