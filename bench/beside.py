"""Evaluation time with a full load of training games, compared with the same evaluation alone.

The `tiny` model plays TicTacToe with itself on the embedded engine. As in asynchronous play, each
training game is a call of its own, and a new game follows each one that ends.

Run: python -m bench.beside [--in_flight 32] [--games 32] [--rounds 5]
"""

import asyncio
import statistics
from collections.abc import Iterable, Sequence
from itertools import count
from time import perf_counter

import torch

from bench import parser
from unstable.collectors.collector import Collector
from unstable.config import RunConfig, parse
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.models.base import load_model, load_tokenizer, stop_token_ids
from unstable.types import BASE, GameSpec, Purpose, SeatSpec


class House:
    """A collector with a constant load of training games."""

    def __init__(self, collector: Collector, in_flight: int) -> None:
        self._collector = collector
        self._in_flight = in_flight
        self._numbers = count()
        self.trained = 0  # finished training games

    async def play(self, purpose: Purpose, numbers: Iterable[int]) -> None:
        """Play games with these numbers to their end."""
        seat = SeatSpec(player=BASE, temperature=1.0)
        specs = [
            GameSpec(game_id=i, purpose=purpose, env="TicTacToe-v0", seed=i, seats=(seat, seat))
            for i in numbers
        ]
        async for _ in self._collector.play(specs):
            self.trained += purpose == "train"

    async def train(self) -> None:
        """Play one training game after another, forever."""
        while True:
            await self.play("train", [next(self._numbers)])

    async def seconds(self, games: int, beside: bool) -> tuple[float, int]:
        """Return the seconds of an evaluation, and the training games that ended during it."""
        tasks = [asyncio.create_task(self.train()) for _ in range(2 * self._in_flight * beside)]
        target = self.trained + 2 * self._in_flight
        while beside and self.trained < target:
            await asyncio.sleep(0.01)
        before, began = self.trained, perf_counter()
        await self.play("eval", range(games))
        spent, trained = perf_counter() - began, self.trained - before
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return spent, trained


def collecting(name: str, in_flight: int) -> tuple[RunConfig, EmbeddedEngine, Collector]:
    """Return a config, an embedded engine of that model and a collector on it.

    `in_flight` is the number of concurrent games.
    """
    config = parse(
        {
            "model": {"name": name, "dtype": "float32"},
            "sampling": {"max_tokens": 4},
            "actors": {"games_in_flight": in_flight},
        }
    )
    model, tokenizer = load_model(config.model), load_tokenizer(config.model)
    engine = EmbeddedEngine(
        model, stop_token_ids(model, config.model, tokenizer), max_requests=in_flight
    )
    return config, engine, Collector(config, engine, tokenizer)


async def measure(games: int, in_flight: int, rounds: int) -> None:
    _, engine, collector = collecting("tiny", in_flight)
    house = House(collector, in_flight)
    await house.seconds(games, beside=True)  # warm-up
    alone, beside, trained = list[float](), list[float](), list[int]()
    for _ in range(rounds):
        alone.append((await house.seconds(games, beside=False))[0])
        spent, meanwhile = await house.seconds(games, beside=True)
        beside.append(spent)
        trained.append(meanwhile)
    await engine.close()
    least, most = statistics.median(alone), statistics.median(beside)
    print(f"alone   {least:.2f} s for {games} games, {in_flight} in flight")
    print(
        f"beside  {most:.2f} s, {most / least:.1f} x, {statistics.median(trained):.0f} training "
        "games meanwhile"
    )


def main(argv: Sequence[str] | None = None) -> None:
    known = {"in_flight": (32, "games at once"), "games": (32, "of an evaluation")}
    given = parser(__doc__, **known, rounds=5, threads=1).parse_args(argv)
    torch.set_num_threads(given.threads)
    asyncio.run(measure(given.games, given.in_flight, given.rounds))


if __name__ == "__main__":
    main()
