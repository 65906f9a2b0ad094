"""Cost of computing a model's exploitability in a small game, by part.

Also measures the plain way on a sample of the decisions: one forward pass of the model per action,
over the whole prompt and answer.

Run: python -m bench.judging [--model smollm2-135m] [--threads 2] [--sample 40]
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import torch

from bench import parser
from unstable.collectors.collector import Collector
from unstable.collectors.players.model import ModelPlayer, legal_answers
from unstable.config import parse
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.models.base import load_model, load_tokenizer, stop_token_ids
from unstable.prompts import PromptBuilder
from unstable.solving.exploiter import Exploiter
from unstable.solving.exploiter import decisions as decisions_of
from unstable.solving.solver import LocalSolver


@torch.inference_mode()
def plainly(model: torch.nn.Module, prompt: list[int], answer: list[int]) -> float:
    """Return the log-probability of an answer, by one forward pass over the whole text."""
    logits = model(torch.tensor([[*prompt, *answer]]), use_cache=False).logits[0]
    logprobs = logits[len(prompt) - 1 : -1].float().log_softmax(-1)
    return float(logprobs.gather(1, torch.tensor(answer)[:, None]).sum())


def asked_of(engine: EmbeddedEngine, prompts: PromptBuilder, most: int) -> ModelPlayer:
    """Return a player on the engine, used under the adapter that each question names."""
    sampled: dict[str, Any] = {"temperature": 1.0, "max_tokens": most}
    return ModelPlayer(engine=engine, adapter=None, version=None, prompts=prompts, **sampled)


async def measure(arguments: argparse.Namespace) -> None:
    named = {"model": {"name": arguments.model}, "games": [{"env": arguments.env}]}
    config = parse({**named, "actors": {"games_in_flight": 64}})
    (game,) = config.games
    model, tokenizer = load_model(config.model), load_tokenizer(config.model)
    stops = stop_token_ids(model, config.model, tokenizer)
    engine = EmbeddedEngine(model, stops, max_requests=64)
    collector = Collector(config, engine, tokenizer)
    prompts, most = collector.prompts[game.key], config.sampling.max_tokens
    solver = LocalSolver(game)
    exploiter = Exploiter(game, asked_of(engine, prompts, most), solver=solver)
    began = time.perf_counter()
    decisions = await solver.ask(decisions_of)
    grown = time.perf_counter()
    shares = await exploiter.decide(None, 0, 1)
    scored = time.perf_counter()
    found = await exploiter.assess(0, shares, time.time())
    ended = time.perf_counter()
    stats = engine.stats()
    await engine.close()

    total = ended - began
    engine_s = stats["prefill_seconds"] + stats["decode_seconds"]
    print(f"{len(decisions)} decisions in {total:.1f} s: exploitability {found.low:.3f}")
    print(
        f"tree {grown - began:.1f} s, scoring {scored - grown:.1f} s (engine {engine_s:.1f} s, "
        f"{engine_s / total:.0%} of all), values {ended - scored:.1f} s"
    )

    chosen = Random(0).sample(range(len(decisions)), arguments.sample)
    began = time.perf_counter()
    worst = 0.0
    for number in chosen:
        observation = decisions[number].observation
        assert observation is not None
        prompt = prompts.build(observation).ids
        answers = legal_answers(prompts, decisions[number].actions, most)
        for answer, share in zip(answers, shares[number], strict=True):
            logprob = plainly(model, prompt, answer)
            worst = max(worst, abs(share - torch.tensor(logprob).exp().item()))
    plain = (time.perf_counter() - began) / arguments.sample
    ours = (scored - grown) / len(decisions)
    print(
        f"plain forward passes: {1e3 * plain:.0f} ms per decision, ours {1e3 * ours:.0f} ms, ratio "
        f"{plain / ours:.1f}; probabilities differ by {worst:.1e} at most"
    )


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(__doc__, env="TicTacToe-v0", model="smollm2-135m", threads=2, sample=40)
    arguments = options.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    asyncio.run(measure(arguments))


if __name__ == "__main__":
    main()
