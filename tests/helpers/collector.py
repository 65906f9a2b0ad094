"""Collector on a scripted engine, and games for it."""

import asyncio
import random
from contextlib import aclosing

from tests.helpers.builders import spec
from tests.helpers.models import tiny_tokenizer
from unstable.collectors.collector import Collector
from unstable.config import parse
from unstable.engines.base import SamplingRequest
from unstable.types import Completion, GameFailure, GameResult

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

    async def generate(self, request: SamplingRequest) -> Completion:
        self.asked.append(request.adapter)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            for _ in range(self._delay() if self._delay else 0):
                random.random()  # changes the global random state
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.running -= 1
        ids = self._tokenizer.encode(f"[{1 + request.seed % 3}]", add_special_tokens=False)
        return Completion(
            token_ids=ids,
            logprobs=[-1.0] * len(ids),
            finish_reason="length",
            adapter=request.adapter,
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
    trained = [seat for seat, player in enumerate(players) if "@" in player]
    given = {"env": env, "purpose": purpose, "trained": trained, "group_ids": [0] * len(players)}
    return [spec(players, game_id=index, **given) for index in range(count)]


async def played(plays, pause=0) -> list[GameResult | GameFailure]:
    results = []
    async with aclosing(plays):
        async for result in plays:
            results.append(result)
            for _ in range(pause):
                await asyncio.sleep(0)
    return results
