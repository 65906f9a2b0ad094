"""How much a slow judge slows playing: games of a full house, judged over HTTP and not, in turn.

The `tiny` model plays TicTacToe with itself on the embedded engine, 400 games a second, as in
asynchronous play. The judge is a server of its own process that takes `--delay` seconds for a call,
whatever is in it.

Run: python -m bench.feedback [--in_flight 64] [--games 512] [--rounds 5] [--delay 0.2]
"""

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from unstable.collectors.collector import Collector
from unstable.config import RewardConfig, RunConfig, parse
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.models.base import load_model, load_tokenizer, stop_token_ids
from unstable.records.folder import RunFolder
from unstable.runtime.actor_process import collect_rarely
from unstable.runtime.judge import judging
from unstable.types import BASE, GameFailure, GameSpec, SeatSpec
from unstable.types.tallies import Asked


def serve(delay_s: float, told: Connection) -> None:
    """Be the judge, for ever; tells its port."""

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
            """A round has ended and hung up."""

    server = Server(("127.0.0.1", 0), Handler)
    told.send(server.server_port)
    server.serve_forever()


@contextmanager
def judge(delay_s: float) -> Iterator[str]:
    """The URL of a judge, as long as the block lasts."""
    context = multiprocessing.get_context("spawn")
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
) -> tuple[float, float, Asked]:
    """From one judged game to the `games`-th after it, while the house stays full.

    By the clock, of this process's processor, and what was asked.
    """
    rewards, over = judging(config, RunFolder(Path())), 0
    seat = SeatSpec(player=BASE, temperature=1.0, group_id=0)
    specs = (
        GameSpec(game_id=i, purpose="train", env="TicTacToe-v0", seed=i, seats=(seat, seat))
        for i in range(games + 4 * house)
    )
    collector.deal(specs)
    async with aclosing(collector.play_on()) as played, aclosing(rewards.judge(played)) as lists:
        async for judged in lists:
            for each in judged:
                assert not isinstance(each, GameFailure), each.error
            if over < house <= over + len(judged):  # the first ones warm up
                began, used, first = time.perf_counter(), time.process_time(), over + len(judged)
            over += len(judged)
            if over >= house + games:
                break
    spent, used = time.perf_counter() - began, time.process_time() - used
    asked = rewards.take_asked()
    await rewards.close()
    return spent / (over - first) * games, used / (over - first) * games, asked


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--in_flight", type=int, default=64, help="games at once")
    parser.add_argument("--games", type=int, default=512, help="that are timed in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--delay", type=float, default=0.2, help="seconds of a call")
    parser.add_argument("--judges", choices=["seat", "turn"], default="seat")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    config = parse(
        {
            "model": {"name": arguments.model, "dtype": "float32"},
            "sampling": {"max_tokens": 4},
            "actors": {"games_in_flight": arguments.in_flight},
        }
    )
    model, tokenizer = load_model(config.model), load_tokenizer(config.model)
    stops = stop_token_ids(model, tokenizer)
    collect_rarely()  # as an actor does
    engine = EmbeddedEngine(model, stops, max_requests=arguments.in_flight)
    collector = Collector(config, engine, tokenizer)
    games, house = arguments.games, arguments.in_flight
    alone, beside = list[tuple[float, float]](), list[tuple[float, float]]()
    with judge(arguments.delay) as url:
        args = {"url": url}
        asked = RewardConfig(term="http", judges=arguments.judges, args=args, cache="none")
        plain = config
        judged = config.updated({"buffer.rewards": [RewardConfig(), asked]})
        await seconds(collector, judged, games, house)  # the first one warms up
        for _ in range(arguments.rounds):
            alone.append((await seconds(collector, plain, games, house))[:2])
            *spent, counted = await seconds(collector, judged, games, house)
            beside.append((spent[0], spent[1]))
    await engine.close()
    counts = counted.counts["http"]
    for what, at in (("clock", 0), ("processor", 1)):
        least = statistics.median(each[at] for each in alone)
        most = statistics.median(each[at] for each in beside)
        ratios = sorted(one[at] / other[at] for one, other in zip(beside, alone, strict=True))
        print(
            f"{what:10} alone {least:.2f} s, judged {most:.2f} s, ratio {most / least:.3f} "
            f"({ratios[0]:.3f} to {ratios[-1]:.3f} in {len(ratios)} rounds)"
        )
    print(
        f"{games} games a round, {house} at once; {counts['asked']} values in {counts['calls']} "
        f"calls of {arguments.delay:g} s"
    )


if __name__ == "__main__":
    asyncio.run(main())
