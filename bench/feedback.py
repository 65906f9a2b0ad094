"""Slowdown of play by a slow judge: games judged over HTTP and not judged, alternating.

The `tiny` model plays TicTacToe with itself on the embedded engine, 400 games per second, as in
asynchronous play. The judge is a server in a separate process that takes `--delay` seconds per
call, independent of its content.

Run: python -m bench.feedback [--in_flight 64] [--games 512] [--rounds 5] [--delay 0.2]
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import aclosing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from bench import forks, parser
from bench.beside import collecting
from bench.orchestration import self_play
from examples.service_judge import score
from unstable.collectors.collector import Collector
from unstable.config import JudgeConfig, RewardConfig, RunConfig
from unstable.records.folder import RunFolder
from unstable.runtime.inside import collect_rarely
from unstable.runtime.judge import judging
from unstable.types import BASE, GameFailure, GameResult, Turn
from unstable.types.tallies import TermCalls


async def score_seats(results: list[GameResult], seats: list[int], url: str) -> list[float | None]:
    return await score(results, seats, url)


async def score_turns(results: list[GameResult], turns: list[Turn], url: str) -> list[float | None]:
    return await score(results, turns, url)  # type: ignore[arg-type]  # handles both


def serve(delay_s: float, told: Connection) -> None:
    """Serve as the judge, forever; sends its port to `told`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            time.sleep(delay_s)
            answer = json.dumps({"values": [0.5] * len(body["items"])}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            """Ignore errors: a round has ended and closed its connections."""

    server = Server(("127.0.0.1", 0), Handler)
    told.send(server.server_port)
    server.serve_forever()


@contextmanager
def judge(delay_s: float) -> Iterator[str]:
    """Yield the URL of a judge that runs until the block ends."""
    context = forks("bench.feedback")
    told, tells = context.Pipe(duplex=False)
    process = context.Process(target=serve, args=(delay_s, tells), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{told.recv()}/"
    finally:
        process.kill()
        process.join()


async def seconds(
    collector: Collector, config: RunConfig, games: int, house: int
) -> tuple[float, float, TermCalls]:
    """Measure `games` judged games, while the number of games in flight stays constant.

    Returns wall-clock seconds, this process's CPU seconds, and the counts of terms.
    """
    rewards, over = judging(config, RunFolder(Path())), 0
    collector.deal(self_play(range(games + 4 * house), BASE))
    async with aclosing(collector.play_on()) as played, aclosing(rewards.judge(played)) as lists:
        async for judged in lists:
            for each in judged:
                assert not isinstance(each, GameFailure), each.error
            if over < house <= over + len(judged):  # skips warm-up games
                began, used, first = time.perf_counter(), time.process_time(), over + len(judged)
            over += len(judged)
            if over >= house + games:
                break
    spent, used = time.perf_counter() - began, time.process_time() - used
    asked = rewards.take_asked()
    await rewards.close()
    return spent / (over - first) * games, used / (over - first) * games, asked


async def measure(arguments: argparse.Namespace) -> None:
    plain, engine, collector = collecting(arguments.model, arguments.in_flight)
    collect_rarely()  # as an actor does
    games, house = arguments.games, arguments.in_flight
    alone, beside = list[tuple[float, float]](), list[tuple[float, float]]()
    with judge(arguments.delay) as url:
        service = JudgeConfig(kind=f"bench.feedback:score_{arguments.judges}s", args={"url": url})
        terms = [RewardConfig(), RewardConfig(term="service")]
        judged = plain.updated({"judges": {"service": service}, "buffer.rewards": terms})
        await seconds(collector, judged, games, house)  # warm-up
        for _ in range(arguments.rounds):
            alone.append((await seconds(collector, plain, games, house))[:2])
            *spent, counted = await seconds(collector, judged, games, house)
            beside.append((spent[0], spent[1]))
    await engine.close()
    counts = counted.counts["service"]
    for what, at in (("clock", 0), ("processor", 1)):
        least = statistics.median(each[at] for each in alone)
        most = statistics.median(each[at] for each in beside)
        ratios = sorted(one[at] / other[at] for one, other in zip(beside, alone, strict=True))
        print(
            f"{what:10} alone {least:.2f} s, judged {most:.2f} s, ratio {most / least:.3f} "
            f"({ratios[0]:.3f} to {ratios[-1]:.3f} in {len(ratios)} rounds)"
        )
    print(
        f"{games} games a round, {house} in flight; {counts['asked']} values in {counts['calls']} "
        f"calls of {arguments.delay:g} s"
    )


def main(argv: Sequence[str] | None = None) -> None:
    known = {"in_flight": (64, "games in flight"), "games": (512, "timed games per round")}
    delay = (0.2, "seconds per call")
    options = parser(__doc__, model="tiny", **known, rounds=5, delay=delay, threads=1)
    options.add_argument("--judges", choices=["seat", "turn"], default="seat")
    arguments = options.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    asyncio.run(measure(arguments))


if __name__ == "__main__":
    main()
