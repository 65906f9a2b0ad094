"""Value of a few tokens of thought for a tiny model, at equal size, examples and updates.

    python -m bench.thinking [--seeds 1 2 3] [--steps 8000] [--games 128]

Nim of three piles of 15 in the compact form. Two models with the same initial weights learn the
expert's moves in one half of all positions by maximum likelihood: one the moves alone, the other
with a thought before each: the piles in binary, their nim-sum, the pile to take from and its
remaining size. Both are then tested on the other half of the winnable positions (the share of
winning answers, at temperature 1), and play the expert and the random player through the engine,
prompts and parser of any run, alternating sides. A perfect player scores 0.5 against the expert.
The thinking model plays once more with its thoughts ended after 8 tokens.
"""

import asyncio
import itertools
import random
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import reduce
from operator import xor
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench import forks, parser
from unstable.collectors.players.model import sample_answer
from unstable.commands.prepare import prepare
from unstable.commands.world import World, learn
from unstable.config import RunConfig, WorldRun, load_as
from unstable.engines.base import SamplingRequest
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.games.game import Game
from unstable.games.services import prompt_style
from unstable.models.base import load_tokenizer
from unstable.models.tiny import make_model, make_tokenizer
from unstable.prompts import THINK, PromptBuilder, write_answer
from unstable.records.folder import RunFolder
from unstable.runtime.local import LocalActor
from unstable.types import BASE, WORTH, GameFailure, GameSpec, PlayerId, SeatSpec, TokenSample
from unstable.types.intervals import mean_interval
from unstable.types.seeds import derive_seed

START = [15, 15, 15]
OPPONENTS = ("expert", "random")
CUT = 8
"""Tokens after which a thought is ended in the last row."""


class Position(NamedTuple):
    """Piles that are not all empty, with an expert's moves."""

    prompt_ids: list[int]
    legal: list[str]
    best: list[str]
    piles: tuple[int, ...]


class Taught(NamedTuple):
    """A prompt and its correct answers, from which `unstable world` draws."""

    prompt_ids: list[int]
    answers: list[list[int]]


def positions(config: RunConfig, prompts: PromptBuilder) -> list[Position]:
    """Return all positions of the game, in a random order from the seed."""
    game = Game(config.games[0], seed=0)
    found = []
    for piles in itertools.product(*(range(size + 1) for size in START)):
        if any(piles):
            game.env.raw.state.game_state["piles"] = [*piles]
            ids = prompts.build(game.observe()).ids
            best = [*game.expert_moves()]
            found.append(Position(ids, game.legal_moves(), best, piles))
    random.Random(f"{config.seed} positions").shuffle(found)
    return found


def thought(piles: Sequence[int], move: str) -> str:
    """Return the piles in binary, their nim-sum, a move's pile and its remaining size.

    >>> thought([3, 4, 5], "[0 2]")
    '0011 0100 0101 0010 0 0001'
    """
    pile, take = map(int, move.strip("[]").split())
    sizes = [*piles, reduce(xor, piles)]
    return " ".join([*(f"{size:04b}" for size in sizes), f"{pile} {piles[pile] - take:04b}"])


def examples(known: Sequence[Position], prompts: PromptBuilder, *, thinks: bool) -> list[Any]:
    """Return each position with the expert's moves as answers, after a thought if it `thinks`."""
    made = []
    for each in known:
        answers = []
        for move in each.best:
            said = f"{THINK.open}{thought(each.piles, move)}{THINK.close}" if thinks else ""
            answers.append(prompts.encode_answer(said + write_answer(prompts, move)))
        made.append(Taught(each.prompt_ids, answers))
    return made


def config_of(folder: str | None, seed: int, steps: int, budget: int | None = None) -> WorldRun:
    """Return a small world's config; with a folder, of play with the model in it."""
    own = {} if folder is None else {"model.name": folder, "model.init": "fresh"}
    return load_as(
        WorldRun,
        "world",
        {
            "games": [{"env": "Nim-v0", "prompt": "compact", "args": {"piles": START}}],
            "sampling": {"max_tokens": 48, "thoughts": {"budget": budget}},
            "world": {"steps": steps, "legal": 1.0, "questions": 0.0, "batch_size": 32},
            "actors": {"num": 1, "games_in_flight": 64, "engine": "embedded"},
            "seed": seed,
            **own,
        },
    )


async def winning(config: RunConfig, model: Any, asked: Sequence[Position]) -> list[float]:
    """Return, for each winnable position, 1 if the answer at temperature 1 wins, else 0."""
    tokenizer = load_tokenizer(config.model)
    prompts = _prompts(config, tokenizer)
    engine = EmbeddedEngine(model, [tokenizer.eos_token_id], max_requests=64, max_length=256)
    budget = config.sampling.thoughts.budget

    async def one(index: int, position: Position) -> float:
        request = SamplingRequest(
            prompt_ids=position.prompt_ids,
            adapter=None,
            temperature=1.0,
            max_tokens=config.sampling.max_tokens,
            seed=derive_seed(config.seed, "asked", index),
        )
        segments = await sample_answer(engine, prompts, request, budget)
        answer = TokenSample(prompt_ids=position.prompt_ids, segments=segments)
        return float(prompts.read_answer(answer.token_ids).action.text in position.best)

    found = await asyncio.gather(*(one(index, each) for index, each in enumerate(asked)))
    await engine.close()
    return found


async def scores(config: RunConfig, opponent: str, games: int) -> list[float]:
    """Return the base model's result of each game against the opponent, alternating sides."""
    resolved = prepare(config).config
    with tempfile.TemporaryDirectory() as scratch:
        run = RunFolder(Path(scratch))
        actor = await LocalActor.start(resolved, run, run.root / "engine.log")
        specs = [_spec(resolved.games[0].key, opponent, number) for number in range(games)]
        results = [result async for result in actor.play(specs)]
        await actor.close()
    found = []
    for result in results:
        assert not isinstance(result, GameFailure), result.error
        seat = [each.player for each in result.spec.seats].index(BASE)
        found.append(WORTH[result.standing(seat)])
    return found


def _spec(env: str, opponent: str, number: int) -> GameSpec:
    players = [BASE, PlayerId(opponent)]
    seats = players[:: -1 if number % 2 else 1]
    return GameSpec(
        game_id=number,
        purpose="eval",
        env=env,
        seed=number // 2,
        seats=tuple(SeatSpec(player=player, temperature=1.0) for player in seats),
    )


def _prompts(config: RunConfig, tokenizer: Any) -> PromptBuilder:
    style, sampling = prompt_style(config.games[0]), config.sampling
    return PromptBuilder(tokenizer, style, {}, sampling.max_prompt_tokens, sampling.thoughts)


class Job(NamedTuple):
    """One model to train and test."""

    seed: int
    thinks: bool
    steps: int
    games: int
    asked: int


def compared(job: Job) -> dict[str, list[list[float]]]:
    """Train a model and return, by way of playing, its wins of unseen positions and its results."""
    torch.set_num_threads(1)
    config = config_of(None, job.seed, job.steps)
    brief = Game(config.games[0], seed=0).observe().brief
    tokenizer = make_tokenizer([f"{brief}\n", *THINK])
    prompts = _prompts(config, tokenizer)
    known = positions(config, prompts)
    half = len(known) // 2
    asked = [each for each in known[half:] if reduce(xor, each.piles)][: job.asked]
    size = config.world
    model = make_model(
        tokenizer, hidden=size.hidden, layers=size.layers, heads=size.heads, seed=job.seed
    )
    learn(model, World(examples(known[:half], prompts, thinks=job.thinks), []), config)
    ways: dict[str, int | None] = {"moves alone": None}
    if job.thinks:
        ways = {"with thoughts": None, f"thoughts cut after {CUT} tokens": CUT}
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        for way, budget in ways.items():
            played = config_of(folder, job.seed, job.steps, budget)
            wins = asyncio.run(winning(played, model, asked))
            against = [asyncio.run(scores(played, name, job.games)) for name in OPPONENTS]
            found[way] = [wins, *against]
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Print a table."""
    options = parser(
        __doc__,
        steps=(8000, "updates per model"),
        games=(128, "games per opponent"),
        asked=(512, "most unseen positions per model"),
        processes=(2, "models trained concurrently"),
    )
    options.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    given = options.parse_args(argv)
    ways = [(seed, thinks) for seed in given.seeds for thinks in (True, False)]
    jobs = [Job(seed, thinks, given.steps, given.games, given.asked) for seed, thinks in ways]
    with ProcessPoolExecutor(given.processes, forks("bench.thinking")) as pool:
        found = list(pool.map(compared, jobs))
    print("| seed | | unseen positions won | score against expert | score against random |")
    print("|---|---|---|---|---|")
    for job, ways_of_job in zip(jobs, found, strict=True):
        for way, columns in ways_of_job.items():
            cells = [mean_interval(values, 0.0, 1.0) for values in columns]
            shown = [f"{each.mean:.2f} ({each.low:.2f} to {each.high:.2f})" for each in cells]
            print(f"| {job.seed} | {way} | {' | '.join(shown)} |")


if __name__ == "__main__":
    main()
