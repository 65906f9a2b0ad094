"""Cost of asynchronous play's gate for the driver, compared with a condition that wakes all.

The 2,688 places of seven actors with 384 games each play games that take no time, of four samples;
a learner draws a batch as soon as one is ready. In the alternative each place checks after every
game whether two batches are ready, as a loop with `asyncio.Condition` does.

Run: python -m bench.gate [--places 2688] [--games 20000] [--rounds 3]
"""

import asyncio
import statistics
from collections.abc import Callable, Coroutine, Sequence
from time import process_time
from typing import Any

from bench import parser
from unstable.buffers.buffer import Buffer
from unstable.buffers.gate import Gate
from unstable.types import (
    Completion,
    GameSpec,
    PackedTrajectory,
    PlayerId,
    Sample,
    SampledTokens,
    SeatSpec,
    Trajectory,
)

SAMPLES = 4
BATCH = 384


class Run:
    """Places that play, and a learner, until enough games were played."""

    def __init__(self, games: int) -> None:
        self.buffer = Buffer(capacity=5 * BATCH, batch_size=BATCH, max_staleness=4)
        self.left = games
        self.played = 0
        completion = Completion(
            token_ids=[2], logprobs=[-1.0], finish_reason="stop", adapter="main@0"
        )
        tokens = SampledTokens(prompt_ids=[1], segments=(completion,), version=0, temperature=1.0)
        self.samples = tuple(Sample(turn=i, tokens=tokens, rewards={}) for i in range(SAMPLES))

    def add(self) -> None:
        """Add a finished game to the buffer."""
        number = self.played = self.played + 1
        seat = SeatSpec(player=PlayerId.policy(0), temperature=1.0, group_id=number)
        spec = GameSpec(game_id=number, purpose="train", env="any", seed=0, seats=(seat,))
        trajectory = Trajectory(
            game_id=number,
            env="any",
            seat=0,
            group_id=number,
            outcome=0.0,
            forfeit=False,
            samples=self.samples,
            rewards={},
        )
        self.buffer.add(spec, [PackedTrajectory.of(trajectory)])

    async def through_the_gate(self, places: int) -> None:
        gate = Gate(self.buffer)

        async def play() -> None:
            while True:
                await gate.enter(0)
                await asyncio.sleep(0)
                self.add()
                gate.leave(0, SAMPLES)

        async def learn() -> None:
            while self.played < self.left:
                await gate.filled.wait()
                self.buffer.draw(0)
                gate.look(0)

        await _together(places, play, learn)

    async def by_a_condition(self, places: int) -> None:
        changed = asyncio.Condition()

        async def play() -> None:
            while True:
                async with changed:
                    await changed.wait_for(lambda: self.buffer.ready(0) < 2 * BATCH)
                await asyncio.sleep(0)
                async with changed:
                    self.add()
                    changed.notify_all()

        async def learn() -> None:
            while self.played < self.left:
                async with changed:
                    await changed.wait_for(lambda: self.buffer.ready(0) >= BATCH)
                    self.buffer.draw(0)
                    changed.notify_all()

        await _together(places, play, learn)

    async def alone(self, places: int) -> None:
        """Play and draw without any waiting: the part that both ways have in common."""
        for _ in range(self.left):
            await asyncio.sleep(0)
            self.add()
            if self.buffer.ready(0) >= BATCH:
                self.buffer.draw(0)


Work = Callable[[], Coroutine[Any, Any, None]]


async def _together(places: int, play: Work, learn: Work) -> None:
    tasks = [asyncio.create_task(play()) for _ in range(places)]
    await learn()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def seconds(way: str, places: int, games: int) -> tuple[float, int]:
    """Return one run's CPU microseconds per game, and the number of dropped samples."""
    run = Run(games)
    began = process_time()
    asyncio.run(getattr(run, way)(places))
    return 1e6 * (process_time() - began) / run.played, run.buffer.dropped.capacity


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser(__doc__, places=2688, games=20_000, rounds=3).parse_args(argv)
    ways = ("alone", "through_the_gate", "by_a_condition")
    rows = [
        {way: seconds(way, arguments.places, arguments.games) for way in ways}
        for _ in range(arguments.rounds)
    ]
    cost = {way: statistics.median(row[way][0] for row in rows) for way in ways}
    for way in ways[1:]:
        dropped = rows[-1][way][1]
        print(f"{way}: {cost[way] - cost['alone']:.1f} us per game, {dropped} samples dropped")
    ratio = (cost["by_a_condition"] - cost["alone"]) / (cost["through_the_gate"] - cost["alone"])
    print(f"ratio {ratio:.1f}")


if __name__ == "__main__":
    main()
