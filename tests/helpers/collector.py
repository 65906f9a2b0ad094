"""A collector on a scripted engine, and games for it."""

import asyncio
import random
from contextlib import aclosing

from tests.helpers.models import tiny_tokenizer
from unstable.collectors.collector import Collector
from unstable.config import parse
from unstable.types import (
    Completion,
    GameFailure,
    GameResult,
    GameSpec,
    PlayerId,
    SeatSpec,
)

ENV = "tests.games.test_games:CountUp"


class Scripted:
    """An engine without a model: waits as asked, answers an action by the request's seed."""

    def __init__(self, delay=None) -> None:
        self.adapters: list[str] = []
        self.asked: list[str | None] = []
        self.running = 0
        self.most_running = 0
        self.cancelled = 0
        self._delay = delay
        self._tokenizer = tiny_tokenizer()

    async def score(self, prompt_ids, continuations, *, adapter) -> list[list[float]]:
        raise NotImplementedError

    async def load(self, weights) -> None:
        self.adapters.append(weights.name)

    async def unload(self, name) -> None:
        self.adapters.remove(name)

    async def forget_prefixes(self) -> None: ...

    def stats(self):
        return {"requests": float(len(self.asked))}

    async def generate(
        self,
        prompt_ids,
        *,
        adapter,
        temperature,
        max_tokens,
        seed,
        allowed_token_ids=None,
        told=None,
    ):
        self.asked.append(adapter)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            for _ in range(self._delay() if self._delay else 0):
                random.random()  # a hostile neighbour of the games
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        ids = self._tokenizer.encode(f"[{1 + seed % 3}]", add_special_tokens=False)
        return Completion(
            token_ids=ids, logprobs=[-1.0] * len(ids), finish_reason="length", adapter=adapter
        )

    async def sleep(self) -> None: ...

    async def wake(self) -> None: ...

    async def close(self) -> None: ...


class Faulty:
    """Plays until the total is seen to be high, then breaks."""

    def __call__(self, observation):
        if "total 5" in observation:
            raise RuntimeError("out of\npatience")
        return "[1]"


def collector(engine, in_flight=4, **changes) -> Collector:
    data = {
        "games": [{"env": ENV, "name": "count"}, {"env": "TicTacToe-v0", "prompt": "answer"}],
        "opponents": {"fixed": [{"kind": "python", "target": f"{__name__}:Faulty", "name": "bot"}]},
        "actors": {"games_in_flight": in_flight},
    }
    return Collector(parse(data | changes), engine, tiny_tokenizer())


def specs(count: int, players=("main@0", "main@0"), env="count", purpose="train"):
    trained = purpose == "train"
    seats = tuple(
        SeatSpec(
            player=player,
            temperature=1.0,
            group_id=0 if trained and player.version is not None else None,
        )
        for player in map(PlayerId.parse, players)
    )
    return [
        GameSpec(game_id=index, purpose=purpose, env=env, seed=index, seats=seats)
        for index in range(count)
    ]


async def played(plays, pause=0) -> list[GameResult | GameFailure]:
    results = []
    async with aclosing(plays):
        async for result in plays:
            results.append(result)
            for _ in range(pause):
                await asyncio.sleep(0)
    return results
