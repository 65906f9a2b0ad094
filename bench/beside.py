"""How long an evaluation takes beside a full house of training games, against the same one alone.

The `tiny` model plays TicTacToe with itself on the embedded engine. As in asynchronous play each
training game is asked for by a call of its own, and a new one follows each that ends.

Run: python -m bench.beside [--in_flight 32] [--games 32] [--rounds 5]
"""

import argparse
import asyncio
import statistics
from collections.abc import Iterable
from itertools import count
from time import perf_counter

import torch

from unstable.collectors.collector import Collector
from unstable.config import parse
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.models.base import load_model, load_tokenizer, stop_token_ids
from unstable.types import BASE, GameSpec, Purpose, SeatSpec


class House:
    """A collector that is kept full of training games."""

    def __init__(self, collector: Collector, in_flight: int) -> None:
        self._collector = collector
        self._in_flight = in_flight
        self._numbers = count()
        self.trained = 0  # games that ended

    async def play(self, purpose: Purpose, numbers: Iterable[int]) -> None:
        """Play games of these numbers to their end."""
        seat = SeatSpec(player=BASE, temperature=1.0)
        specs = [
            GameSpec(game_id=i, purpose=purpose, env="TicTacToe-v0", seed=i, seats=(seat, seat))
            for i in numbers
        ]
        async for _ in self._collector.play(specs):
            self.trained += purpose == "train"

    async def train(self) -> None:
        """One training game after another, for ever."""
        while True:
            await self.play("train", [next(self._numbers)])

    async def seconds(self, games: int, beside: bool) -> tuple[float, int]:
        """Of an evaluation of so many games, and the training games that ended meanwhile."""
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


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--in_flight", type=int, default=32, help="games at once")
    parser.add_argument("--games", type=int, default=32, help="of an evaluation")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    config = parse(
        {
            "model": {"name": "tiny", "dtype": "float32"},
            "sampling": {"max_tokens": 4},
            "actors": {"games_in_flight": arguments.in_flight},
        }
    )
    model, tokenizer = load_model(config.model), load_tokenizer(config.model)
    stops = stop_token_ids(model, tokenizer)
    engine = EmbeddedEngine(model, stops, max_requests=arguments.in_flight)
    house = House(Collector(config, engine, tokenizer), arguments.in_flight)
    await house.seconds(arguments.games, beside=True)  # the first one warms up
    alone, beside, trained = list[float](), list[float](), list[int]()
    for _ in range(arguments.rounds):
        alone.append((await house.seconds(arguments.games, beside=False))[0])
        spent, meanwhile = await house.seconds(arguments.games, beside=True)
        beside.append(spent)
        trained.append(meanwhile)
    await engine.close()
    least, most = statistics.median(alone), statistics.median(beside)
    print(f"alone   {least:.2f} s for {arguments.games} games, {arguments.in_flight} at once")
    print(
        f"beside  {most:.2f} s, {most / least:.1f} x, {statistics.median(trained):.0f} training "
        "games meanwhile"
    )


if __name__ == "__main__":
    asyncio.run(main())
