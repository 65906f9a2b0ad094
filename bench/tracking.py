"""Cost of tracking per game, in actor and driver, compared with writing the same lines plainly.

Real TicTacToe games, played once by an instant engine, 384 in flight, in the order in which they
end; with their trajectories they take the path of a run's games, round after round:

- actor: lines, sums and packed samples, made in the actor's process.
- tracker: `Tracker.add_games` of eight at a time, with the files of the run: the driver's part.
- plain: `json.dumps` of the same records, and a write.
- learner: the lines of a batch of 384 samples, averaged over the batch's games.
- update: the driver's cost of these lines and a row.

Measures CPU seconds of this process, system calls included, since the machine may do other work.
First writes and removes a file far larger than all later output: in a virtual machine, the first
use of memory costs more than the write itself (0.05 ms per line compared with 0.008).

Run: OMP_NUM_THREADS=1 python -m bench.tracking [--games 768] [--in-flight 384] [--rounds 9]
"""

import asyncio
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from time import process_time
from typing import Any

from bench import parser
from bench.orchestration import ScriptedEngine, free_cell
from unstable.config import RunConfig, parse
from unstable.loop.ended import Ended
from unstable.models.base import load_tokenizer
from unstable.records.folder import RunFolder
from unstable.records.games import game_body, game_line, sample_lines
from unstable.runtime.inside import collect_rarely
from unstable.runtime.local import LocalActor
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
from unstable.types.tallies import TermCalls

Finished = tuple[GameResult, list[Trajectory]]
BATCH = 384
TOGETHER = 8
"""Games per message."""


async def play(config: RunConfig, games: int) -> list[Finished]:
    """Return self-play games with their trajectories, in the order in which they end."""
    tokenizer = load_tokenizer(config.model)
    engine: Any = ScriptedEngine(free_cell(tokenizer))
    actor = LocalActor(config, RunFolder(Path()), engine, tokenizer)
    seats = [SeatSpec(player=PlayerId.policy(0), temperature=1.0, group_id=i) for i in range(2)]
    specs = [
        GameSpec(game_id=i, purpose="train", env="TicTacToe-v0", seed=i, seats=tuple(seats))
        for i in range(games)
    ]
    finished = []
    async for judged in actor.judged(actor.collector.play_together(specs)):
        for each in judged:
            assert not isinstance(each, GameFailure | TermCalls), each
            finished.append(each)
    return finished


def batches(finished: Iterable[Finished]) -> list[Batch]:
    """Return the games' trajectories in batches of `BATCH` samples or a few more."""
    found: list[list[Group]] = [[]]
    samples = 0
    for trajectory in (each for _, trajectories in finished for each in trajectories):
        found[-1].append(Group(trajectories=(trajectory,)))
        samples += len(trajectory.samples)
        if samples >= BATCH:
            found.append([])
            samples = 0
    return [Batch(version=0, groups=tuple(groups)) for groups in found if groups]


def made(finished: Sequence[Finished]) -> tuple[float, list[Ended]]:
    began = process_time()
    messages = [
        Ended.of(finished[first : first + TOGETHER]) for first in range(0, len(finished), TOGETHER)
    ]
    return process_time() - began, messages


def tracked(tracker: Tracker, messages: Iterable[Ended]) -> float:
    began = process_time()
    for ended in messages:
        tracker.add_games(ended.finished, ended.play, version=0)
    return process_time() - began


def written(path: Path, finished: Iterable[Finished]) -> float:
    began = process_time()
    with path.open("ab") as file:
        for each in finished:
            file.write(game_line(game_body(*each), 0, 0))
    return process_time() - began


def warm_up(scratch: Path, size: int) -> None:
    """Write `size` bytes into the system's file cache and remove them."""
    path = scratch / "warm"
    with path.open("wb") as file:
        for _ in range(0, size, 2**20):
            file.write(b"\0" * 2**20)
    path.unlink()


def learned(drawn: Iterable[Batch]) -> tuple[float, list[Update]]:
    began, updates = process_time(), []
    for version, batch in enumerate(drawn, start=1):
        advantages = [0.5] * len(batch.samples)
        lines = sample_lines(batch, advantages)
        updates.append(Update(version=version, metrics={}, advantages=advantages, lines=lines))
    return process_time() - began, updates


def updated(tracker: Tracker, updates: Iterable[Update]) -> float:
    began = process_time()
    for update in updates:
        tracker.log_learner(update)
        tracker.log_samples(update)
        tracker.end_update(update.version)
    return process_time() - began


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser(__doc__, games=768, in_flight=384, rounds=9).parse_args(argv)
    config = parse(
        {
            "actors": {"games_in_flight": arguments.in_flight},
            "tracking": {"dashboard": "off"},
        }
    )
    finished = asyncio.run(play(config, arguments.games))
    drawn = batches(finished)
    collect_rarely()
    names = ("actor", "tracker", "plain", "learner", "update")
    times: dict[str, list[float]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as scratch:
        size = sum(len(game_line(game_body(*each), 0, 0)) for each in finished)
        warm_up(Path(scratch), 12 * size * arguments.rounds)
        tracker = Tracker(config, RunFolder(Path(scratch)))
        tracker.print = lambda line: None
        for _ in range(arguments.rounds):
            spent, messages = made(finished)
            times["actor"].append(spent)
            times["tracker"].append(tracked(tracker, messages))
            times["plain"].append(written(Path(scratch) / "plain", finished))
            spent, updates = learned(drawn)
            times["learner"].append(spent)
            times["update"].append(updated(tracker, updates))
        tracker.close()
    turns = sum(len(result.turns) for result, _ in finished) / arguments.games
    size_kb = size / arguments.games / 1000
    print(f"{arguments.games} games of {turns:.1f} turns and {size_kb:.1f} kB")
    plain = statistics.median(times["plain"])
    for name, seconds in times.items():
        median = statistics.median(seconds)
        each = [1000 * value / arguments.games for value in (median, min(seconds), max(seconds))]
        print(
            f"{name:8} {each[0]:.3f} ms per game ({each[1]:.3f} to {each[2]:.3f}), "
            f"{median / plain:.2f} x plain"
        )


if __name__ == "__main__":
    main()
