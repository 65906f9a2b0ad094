"""What the tracker costs the driver for each game, against writing the same lines plainly.

Real TicTacToe games, played once by an engine that answers at once, 384 in flight, in the order in
which they end; with their trajectories they go to the tracker, round after round:

- tracker: `Tracker.add_trajectory` with the files of the run: metrics, view, a line a game.
- plain: `json.dumps` of the same records, and a write.
- update: what a batch of 384 samples and a row cost besides, shared out over the batch's games.

Processor seconds of this process, system calls included, since the machine may do other work. A
file far larger than all that is written comes first and is removed: in a virtual machine memory
that was never in use costs its first user more than the write itself (0.05 ms a line against
0.008).

Run: OMP_NUM_THREADS=1 python -m bench.tracking [--games 768] [--in-flight 384] [--rounds 9]
"""

import argparse
import asyncio
import json
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path
from time import process_time

from bench.orchestration import ScriptedEngine, free_cell
from unstable.collectors.collector import Collector
from unstable.config import RunConfig, parse
from unstable.models.base import load_tokenizer
from unstable.records.folder import RunFolder
from unstable.records.games import game_record
from unstable.rewards.terms import Rewards
from unstable.runtime.actors import collect_rarely
from unstable.tracking.tracker import Tracker
from unstable.types import (
    Batch,
    GameFailure,
    GameResult,
    GameSpec,
    Group,
    PlayerId,
    SeatSpec,
    Trajectory,
    Update,
)

Finished = tuple[GameResult, list[Trajectory]]
BATCH = 384


async def play(config: RunConfig, games: int) -> list[Finished]:
    """Games in self-play with their trajectories, in the order in which they end."""
    tokenizer = load_tokenizer(config.model)
    collector = Collector(config, ScriptedEngine(free_cell(tokenizer)), tokenizer)
    seats = [SeatSpec(player=PlayerId.policy(0), temperature=1.0, group_id=i) for i in range(2)]
    specs = [
        GameSpec(game_id=i, purpose="train", env="TicTacToe-v0", seed=i, seats=tuple(seats))
        for i in range(games)
    ]
    finished = []
    async for judged in Rewards(config.buffer.rewards).judge(collector.play(specs)):
        assert not isinstance(judged, GameFailure), judged
        finished.append(judged)
    return finished


def batches(finished: Iterable[Finished]) -> list[Batch]:
    """The games' trajectories in batches of `BATCH` samples or a few more."""
    found: list[list[Group]] = [[]]
    samples = 0
    for trajectory in (each for _, trajectories in finished for each in trajectories):
        found[-1].append(Group(trajectories=(trajectory,)))
        samples += len(trajectory.samples)
        if samples >= BATCH:
            found.append([])
            samples = 0
    return [Batch(version=0, groups=tuple(groups)) for groups in found if groups]


def tracked(tracker: Tracker, finished: Iterable[Finished]) -> float:
    began = process_time()
    for result, trajectories in finished:
        tracker.add_trajectory(result, trajectories, version=0)
    return process_time() - began


def written(path: Path, finished: Iterable[Finished]) -> float:
    began = process_time()
    with path.open("a", encoding="utf-8") as file:
        for result, trajectories in finished:
            file.write(json.dumps(game_record(result, trajectories, 0, 0)) + "\n")
    return process_time() - began


def warm_up(scratch: Path, size: int) -> None:
    """Put `size` bytes into the system's file cache and remove them."""
    path = scratch / "warm"
    with path.open("wb") as file:
        for _ in range(0, size, 2**20):
            file.write(b"\0" * 2**20)
    path.unlink()


def updated(tracker: Tracker, drawn: Iterable[Batch]) -> float:
    began = process_time()
    for version, batch in enumerate(drawn, start=1):
        update = Update(version=version, metrics={}, advantages=[0.5] * len(batch.samples))
        tracker.log_learner(update)
        tracker.log_samples(update, batch)
        tracker.end_update(version)
    return process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--games", type=int, default=768)
    parser.add_argument("--in-flight", type=int, default=384)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    config = parse(
        {
            "actors": {"games_in_flight": arguments.in_flight},
            "tracking": {"dashboard": "off"},
        }
    )
    finished = asyncio.run(play(config, arguments.games))
    drawn = batches(finished)
    collect_rarely()
    times: dict[str, list[float]] = {"tracker": [], "plain": [], "update": []}
    with tempfile.TemporaryDirectory() as scratch:
        size = sum(len(json.dumps(game_record(*each, 0, 0))) for each in finished)
        warm_up(Path(scratch), 12 * size * arguments.rounds)
        tracker = Tracker(config, RunFolder(Path(scratch)))
        tracker.print = lambda line: None  # type: ignore[method-assign]
        for _ in range(arguments.rounds):
            times["tracker"].append(tracked(tracker, finished))
            times["plain"].append(written(Path(scratch) / "plain", finished))
            times["update"].append(updated(tracker, drawn))
        tracker.close()
    turns = sum(len(result.turns) for result, _ in finished) / arguments.games
    size_kb = size / arguments.games / 1000
    print(f"{arguments.games} games of {turns:.1f} turns and {size_kb:.1f} kB")
    plain = statistics.median(times["plain"])
    for name, seconds in times.items():
        median = statistics.median(seconds)
        each = [1000 * value / arguments.games for value in (median, min(seconds), max(seconds))]
        print(
            f"{name:8} {each[0]:.3f} ms a game ({each[1]:.3f} to {each[2]:.3f}), "
            f"{median / plain:.2f} x plain"
        )


if __name__ == "__main__":
    main()
