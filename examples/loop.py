"""A custom training loop: plays, learns, publishes, evaluates and resumes the tiny world.

    python -m examples.loop outputs/mine 20

In synchronous play `unstable train` makes the same games, updates and weights, bit for bit. A
second call with the same folder and a higher number of updates resumes the run.
"""

import asyncio
import math
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import unstable
from unstable.loop.train import conclude, finalize, publish
from unstable.types import GameSpec, PlayedGame, PlayerId


async def loop(run: unstable.Context) -> str:
    """Play and learn until all updates are made."""
    if not run.versions.published:
        await publish(run, await run.learner.hold())
        await finalize(run)
    while not run.is_done:
        batch = run.buffer.draw(run.version)
        if batch is None:
            run.end_round(await play(run, run.past, run.probabilities))
        else:
            made = await conclude(run, await run.learner.update(batch))  # metrics and alarms
            await publish(run, *made)  # saves and serves the version, and adds it to the pool
            await finalize(run)  # runs due evaluations, writes metrics and state
    return "all updates made"


async def play(
    run: unstable.Context, past: Sequence[PlayerId], odds: Sequence[float] = ()
) -> list[PlayedGame]:
    """Play the samples that the next batch lacks, an equal share on each actor.

    Opponents are versions of the `past`, with probabilities proportional to `odds`, by default
    equal.
    """
    lacking = run.config.learner.batch_size - run.buffer.ready(run.version)
    share = math.ceil(lacking / len(run.actors))

    async def play_on(index: int) -> list[PlayedGame]:
        specs: list[GameSpec] = []
        while len(specs) < share:
            specs += run.schedule.draw(index, run.current, past, odds)
        games: list[PlayedGame] = []
        async for ended in run.actors[index].play_round(specs, share):
            games += run.take(ended, index)  # counts and records games
        return games

    played = await asyncio.gather(*map(play_on, range(len(run.actors))))
    return list(chain(*played))


def main(folder: Path, updates: int, **options: Any) -> None:
    """Train the tiny world in `folder`, with changes of its config, or resume the run there."""
    if folder.exists():
        unstable.resume(folder, {"loop.steps": updates}, loop)
        return
    options |= {"loop.steps": updates, "tracking.run_dir": str(folder)}
    unstable.train(unstable.load("tiny", options), loop=loop)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
