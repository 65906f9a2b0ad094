"""Speed of the embedded engine on one CPU thread, compared with transformers' `generate()`.

    python -m bench.cpu_engine [--quick]

Prints (a) sampled tokens per second of many requests under one adapter, (b) under three mixed
adapters, both as ratios to `generate()` with PEFT on the same prompts, (c) the prompt work that
shared prefixes save in TicTacToe games, and (d) the speed of the same model served as one that
cannot be packed. Seconds are CPU seconds of this process, which has one thread, so that other work
on the machine disturbs them less than wall-clock time.
"""

import argparse
import asyncio
import copy
import statistics
import time
from collections.abc import Sequence
from itertools import count

import numpy as np
import torch
from peft import PeftModel
from safetensors.torch import load, save
from transformers import GenerationConfig, PreTrainedTokenizerBase

from bench import parser
from unstable.config import GameConfig, ModelConfig
from unstable.engines.base import SamplingRequest
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.games.game import Game
from unstable.learners.model.trained import TrainedLora
from unstable.models.adapters import attach_lora
from unstable.models.base import load_model, load_tokenizer
from unstable.prompts import STYLES
from unstable.types import Adapter

TEMPERATURE = 0.8
NAMES = ("main@0", "main@1", "main@2")


def random_adapter(peft_model: PeftModel, name: str, seed: int) -> Adapter:
    """Return an adapter whose B is not zero, as after some training."""
    random = torch.Generator().manual_seed(seed)
    fresh = TrainedLora(peft_model).export(name)
    weights = {
        key: torch.randn(value.shape, generator=random) * 0.01
        for key, value in load(fresh.weights).items()
    }
    return Adapter(name=name, weights=save(weights), config=fresh.config)


def random_prompts(number: int, length: int, vocab: int, seed: int) -> list[list[int]]:
    """Return prompts that share no prefix, with lengths up to `length`."""
    random = np.random.default_rng(seed)
    sizes = random.integers(3 * length // 4, length + 1, number)
    return [random.integers(1, vocab, size).tolist() for size in sizes]


def serve(
    runner: asyncio.Runner,
    engine: EmbeddedEngine,
    chains: Sequence[Sequence[list[int]]],
    names: Sequence[str],
    new_tokens: int,
) -> float:
    """Return the CPU seconds to answer chains of prompts concurrently, alternating adapters."""

    async def answer(number: int) -> None:
        for prompt in chains[number]:
            request = SamplingRequest(
                prompt_ids=prompt,
                adapter=names[number % len(names)],
                temperature=TEMPERATURE,
                max_tokens=new_tokens,
                seed=number,
            )
            await engine.generate(request)

    async def answer_all() -> None:
        await asyncio.gather(*[answer(number) for number in range(len(chains))])

    began = time.process_time()
    runner.run(answer_all())
    return time.process_time() - began


@torch.inference_mode()
def generate(peft_model: PeftModel, prompts: Sequence[list[int]], new_tokens: int) -> float:
    """Return the CPU seconds that `generate()` takes for the same prompts, padded on the left."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    config = GenerationConfig(
        do_sample=True,
        temperature=TEMPERATURE,
        top_k=0,
        top_p=1.0,
        max_new_tokens=new_tokens,
        pad_token_id=0,
        eos_token_id=None,
    )
    began = time.process_time()
    output = peft_model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
    seconds = time.process_time() - began
    assert output.shape[1] == longest + new_tokens
    return seconds


def compare_speed(
    runner: asyncio.Runner,
    engine: EmbeddedEngine,
    peft_model: PeftModel,
    args: argparse.Namespace,
) -> None:
    """Print medians of (a) and (b): rounds of all three ways, on new prompts each time."""
    seconds: dict[str, list[float]] = {"generate": [], "one": [], "three": []}
    vocab = peft_model.config.vocab_size
    for number in range(args.rounds + 1):
        prompts = random_prompts(args.requests, args.prompt_tokens, vocab, number)
        others = random_prompts(args.requests, args.prompt_tokens, vocab, 1000 + number)
        once = {
            "generate": generate(peft_model, prompts, args.new_tokens),
            "one": serve(runner, engine, [[p] for p in prompts], NAMES[:1], args.new_tokens),
            "three": serve(runner, engine, [[p] for p in others], NAMES, args.new_tokens),
        }
        if number > 0:  # the first round warms up
            for name, taken in once.items():
                seconds[name].append(taken)
    sampled = args.requests * args.new_tokens
    speeds = {name: sampled / statistics.median(taken) for name, taken in seconds.items()}
    print(
        f"{args.requests} requests, {args.prompt_tokens} prompt and {args.new_tokens} new tokens, "
        f"medians of {args.rounds}, {peft_model.dtype}:"
    )
    print(f"    generate(), one adapter  {speeds['generate']:6.0f} tokens/s")
    for label, name in (("(a) ours, one adapter  ", "one"), ("(b) ours, three adapters", "three")):
        ratio = speeds[name] / speeds["generate"]
        print(f"{label:<28} {speeds[name]:6.0f} tokens/s = {ratio:.2f} x generate()")


def game_prompts(tokenizer: PreTrainedTokenizerBase, seed: int) -> list[list[int]]:
    """Return the prompts of a TicTacToe game of random legal moves, each with the whole history."""
    game, random, prompts = Game(GameConfig(events="all"), seed), np.random.default_rng(seed), []
    style = STYLES["answer"]
    while not game.done:
        chat = style.messages(style.render(game.observe()))
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        prompts.append(list(ids))
        game.step(str(random.choice(game.legal_moves())))
    return prompts


def compare_prefixes(
    runner: asyncio.Runner, engine: EmbeddedEngine, games: Sequence[Sequence[list[int]]]
) -> None:
    """Print (c): games' prompts unchanged, and with a unique first token each."""
    first_ids = count(1)
    apart = [[[next(first_ids), *prompt[1:]] for prompt in game] for game in games]
    whole_s = serve(runner, engine, apart, NAMES[:1], 1)
    before = engine.stats()
    shared_s = serve(runner, engine, games, NAMES[:1], 1)
    done = {name: value - before[name] for name, value in engine.stats().items()}
    prompts, tokens = done["requests"], done["prompt_tokens"]
    share = done["cached_prompt_tokens"] / tokens
    print(f"{len(games)} TicTacToe games at once, {prompts:.0f} prompts of {tokens / prompts:.0f}:")
    print(f"    every prompt whole       {whole_s:6.1f} s")
    print(
        f"(c) shared prefixes copied   {shared_s:6.1f} s, {whole_s / shared_s:.1f} times as fast; "
        f"{share:.0%} of the prompt tokens are copied"
    )


def compare_ways(
    runner: asyncio.Runner, packed: EmbeddedEngine, own: EmbeddedEngine, args: argparse.Namespace
) -> None:
    """Print (d): medians with three adapters, by packed rows and by the model's own cache."""
    sampled, random = args.requests * args.new_tokens, np.random.default_rng(0)
    for label in ("of many lengths", "of one length"):
        seconds: dict[EmbeddedEngine, list[float]] = {packed: [], own: []}
        for number in range(args.rounds + 1):
            for engine, taken in seconds.items():
                if label == "of one length":
                    size = (args.requests, args.prompt_tokens)
                    prompts = random.integers(1, args.vocab, size).tolist()
                else:
                    seed = int(random.integers(2**31))
                    prompts = random_prompts(args.requests, args.prompt_tokens, args.vocab, seed)
                once = serve(runner, engine, [[p] for p in prompts], NAMES, args.new_tokens)
                if number > 0:  # the first round warms up
                    taken.append(once)
        speeds = [sampled / statistics.median(taken) for taken in seconds.values()]
        print(
            f"(d) prompts {label}: packed {speeds[0]:.0f} tokens/s, by the model's own cache "
            f"{speeds[1]:.0f}, {speeds[0] / speeds[1]:.1f} times as slow"
        )


def main(argv: Sequence[str] | None = None) -> None:
    options = parser(
        __doc__,
        requests=(32, "requests at once"),
        prompt_tokens=(64, "longest prompt"),
        new_tokens=(48, "sampled per request"),
        rounds=(5, "measured rounds"),
        games=(32, "TicTacToe games at once"),
        model="smollm2-135m",
    )
    options.add_argument("--quick", action="store_true", help="two short rounds with few games")
    args = options.parse_args(argv)
    if args.quick:
        args.rounds, args.new_tokens, args.games = 2, 16, 8
    torch.set_num_threads(1)
    config = ModelConfig(name=args.model)
    base = load_model(config)
    peft_model = attach_lora(copy.deepcopy(base), config.lora, seed=0).eval()
    adapters = [random_adapter(peft_model, name, seed) for seed, name in enumerate(NAMES)]
    TrainedLora(peft_model).load(adapters[0])
    own = EmbeddedEngine(
        copy.deepcopy(base), stop_token_ids=(), max_requests=args.requests, packed=False
    )
    engine = EmbeddedEngine(base, stop_token_ids=(), max_requests=args.requests)
    tokenizer = load_tokenizer(config)
    games = [game_prompts(tokenizer, seed) for seed in range(args.games)]
    with asyncio.Runner() as runner:
        for adapter in adapters:
            runner.run(engine.load(adapter))
            runner.run(own.load(adapter))
        compare_speed(runner, engine, peft_model, args)
        compare_prefixes(runner, engine, games)
        args.vocab = base.config.vocab_size
        compare_ways(runner, engine, own, args)
        runner.run(engine.close())


if __name__ == "__main__":
    main()
