"""Games played in process, compared with the same games through `unstable serve`.

    python -m bench.endpoint [--games 128] [--in_flight 64] [--rounds 3] [--model NAME]

Both ways alternate, round after round, on the embedded engine with one thread. In process, games
and engine share a process; through the endpoint, the engine is in the process of `unstable serve`,
and `openai` opponents that send their seeds play the games here. Prints medians and their ratio: of
turns per second by wall clock, and of CPU time per turn, of all processes.
"""

import argparse
import asyncio
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import psutil
import torch

from bench import parser
from bench.rollout import bench_config
from unstable.collectors.collector import Collector
from unstable.config import RunConfig, dump
from unstable.engines.kinds import make_engine
from unstable.types import BASE, GameResult, GameSpec, PlayerId, SeatSpec

KEY = "BENCH_ENDPOINT_KEY"
"""Environment variable of a token that the endpoint does not check."""
FAR = PlayerId("far")


class Round(NamedTuple):
    """Turns and times of a round of games."""

    turns: int
    seconds: float
    processor_seconds: float


@contextmanager
def serving(config: RunConfig, folder: Path) -> Iterator[tuple[str, psutil.Process]]:
    """Run `unstable serve` with the config's base; yields its URL and its process."""
    path = folder / "config.yaml"
    path.write_text(dump(config), encoding="utf-8")
    likeliest = str(config.tracking.top_logprobs)
    words = ["serve", "--config", str(path), "--port", "0", "--top_logprobs", likeliest]
    process = subprocess.Popen(
        [sys.executable, "-m", "unstable.cli", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = re.match(r"serving base at (\S+)", process.stdout.readline())
        assert found is not None, "the endpoint did not start"
        yield found[1], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def through(config: RunConfig, url: str) -> RunConfig:
    """Return the config with the endpoint as an opponent, whose turns take the same tokens."""
    far = {"kind": "openai", "name": FAR.name, "model": BASE.name, "base_url": url, "timeout": 600}
    own = {**far, "api_key_env": KEY, "seeded": True, "max_tokens": config.sampling.max_tokens}
    return RunConfig.model_validate(
        config.model_dump()
        | {"opponents": {"fixed": [own], "draw": {"self": 0, "past": 0, "fixed": 1}}}
    )


async def play(
    collector: Collector, player: PlayerId, games: range, processes: Sequence[psutil.Process]
) -> Round:
    """Play a round of games with the player at both seats."""
    seat = SeatSpec(player=player, temperature=1.0)
    specs = [
        GameSpec(game_id=i, purpose="eval", env="game", seed=i, seats=(seat, seat)) for i in games
    ]
    began, before = perf_counter(), spent(processes)
    turns = 0
    async for result in collector.play(specs):
        assert isinstance(result, GameResult), result.traceback
        turns += len(result.turns)
    return Round(turns, perf_counter() - began, spent(processes) - before)


def spent(processes: Sequence[psutil.Process]) -> float:
    """Return the CPU seconds of processes so far."""
    return sum(sum(process.cpu_times()[:2]) for process in processes)


async def measure(config: RunConfig, arguments: argparse.Namespace, folder: Path) -> None:
    torch.set_num_threads(1)
    own = psutil.Process()
    engine, tokenizer = await make_engine(config, folder / "engine.log")
    with serving(config, folder) as (url, server):
        here = Collector(config, engine, tokenizer)
        there = Collector(through(config, url), None, None)
        await there.start()
        rounds: dict[str, list[Round]] = {"in process": [], "endpoint": []}
        for number in range(arguments.rounds + 1):
            games = range(number * arguments.games, (number + 1) * arguments.games)
            found = {
                "in process": await play(here, BASE, games, [own]),
                "endpoint": await play(there, FAR, games, [own, server]),
            }
            for way, each in found.items() if number else ():  # the first round is the warm-up
                rounds[way].append(each)
    await engine.close()
    report(rounds)


def report(rounds: dict[str, list[Round]]) -> None:
    """Print the medians, and the endpoint's relative to the others."""
    speeds, costs = dict[str, float](), dict[str, float]()
    for way, found in rounds.items():
        speeds[way] = statistics.median(each.turns / each.seconds for each in found)
        costs[way] = statistics.median(each.processor_seconds / each.turns for each in found)
        turns = sum(each.turns for each in found)
        print(f"{way:<11}{speeds[way]:8.1f} turns/s, {1e3 * costs[way]:6.1f} ms of CPU per turn")
        print(f"{'':<11}in {turns} turns of {len(found)} rounds")
    speed, cost = (each["endpoint"] / each["in process"] for each in (speeds, costs))
    print(f"endpoint: {speed:.2f} x the turns per second, {cost:.2f} x the CPU time per turn")


def main(argv: Sequence[str] | None = None) -> None:
    arguments = parser(
        __doc__,
        games=(128, "games per round"),
        in_flight=(64, "games in flight"),
        rounds=(3, "measured rounds"),
        max_tokens=(16, "longest answer"),
        top_logprobs=(0, "top tokens to record"),
        model="smollm2-135m",
    ).parse_args(argv)
    os.environ.setdefault(KEY, "any")
    made: dict[str, Any] = {"in_flight": arguments.in_flight, "max_tokens": arguments.max_tokens}
    config = bench_config(arguments.model, "embedded", actors={}, **made)
    games = [game.updated({"turn_timeout": 600.0}) for game in config.games]  # for a busy machine
    config = config.updated({"tracking.top_logprobs": arguments.top_logprobs, "games": games})
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(config, arguments, Path(folder)))


if __name__ == "__main__":
    main()
