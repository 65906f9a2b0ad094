"""A custom league: a version becomes an opponent only after it has beaten the champion.

    python -m examples.gated_league outputs/gated 20

The loop is the one in `examples/loop.py` with other opponents: champions, the newest of which each
new version plays in paired games. AlphaGo Zero chose its players in this way
(https://doi.org/10.1038/nature24270).
"""

import sys
from pathlib import Path
from typing import Any

import unstable
from examples.loop import play
from unstable.league.evaluation import evaluation_games, evaluation_scores
from unstable.loop.train import conclude, finalize, publish
from unstable.types import GameResult, PlayerId

ENOUGH = 0.55
"""Least score against the champion that makes a version the next champion."""
CHANGES = {
    "opponents.draw": {"self": 0.5, "past": 0.5, "fixed": 0.0},
    "eval.opponents": ["past"],
    "eval.temperature": [1.0],
    "eval.every": 0,
    "eval.exploitability.every": 0,
}


async def loop(run: unstable.Context) -> str:
    """Play against champions and learn until all updates are made."""
    record = run.folder.root / "champions.txt"
    numbers = record.read_text().split() if record.exists() else ["0"]
    champions = [run.player(int(number)) for number in numbers]
    if not run.versions.published:
        await publish(run, await run.learner.hold())
        await finalize(run)
    while not run.is_done:
        run.versions.kept = set(champions)  # actors keep serving them as opponents
        batch = run.buffer.draw(run.version)
        if batch is None:
            run.end_round(await play(run, champions))
            continue
        await publish(run, *await conclude(run, await run.learner.update(batch)))
        score = await match(run, champions[-1])
        run.tracker.print(f"{run.current.name} scores {score:.2f} against {champions[-1].name}")
        if score >= ENOUGH:
            champions.append(run.current)
            record.write_text("\n".join(str(each.version) for each in champions))
        await finalize(run)
    return "all updates made"


async def match(run: unstable.Context, champion: PlayerId) -> float:
    """Return the current version's score in `eval.games` games, two seatings per deal."""
    specs = evaluation_games(run.config, run.version, [champion])
    results = [result async for result in run.actors[0].play(specs)]
    played = [result for result in results if isinstance(result, GameResult)]
    return evaluation_scores(run.version, played)[0].score


def main(folder: Path, updates: int, **options: Any) -> None:
    """Train Kuhn poker in `folder`, with changes of its config, or resume the run there."""
    if folder.exists():
        unstable.resume(folder, {"loop.steps": updates}, loop)
        return
    options |= {"loop.steps": updates, "tracking.run_dir": str(folder)}
    unstable.train(unstable.load("tiny_kuhn", CHANGES | options), loop=loop)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
