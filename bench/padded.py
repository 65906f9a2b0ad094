"""Slowdown of padded rows compared with packs: one model by both paths.

    OMP_NUM_THREADS=1 python -m bench.padded [--model smollm2-135m] [--rounds 3]

Forward and backward of the same samples, with distinct prompts and with prompts that share a prefix
like a game's turns. The paths alternate; seconds are CPU seconds with one thread and no GPU.
"""

import statistics
import time
from collections.abc import Sequence

import numpy as np
import torch

from bench import parser
from unstable.config import AdapterConfig, ModelConfig
from unstable.learners.micro_batches import MicroBatches
from unstable.learners.model.attention import ATTENTION
from unstable.learners.model.policy import Policy
from unstable.learners.model.token_table import TokenTable
from unstable.models.adapters import attach_lora
from unstable.models.base import load_model
from unstable.types import Segment, TokenSample


def make_samples(number: int, prompt: int, shared: int, vocab: int) -> list[TokenSample]:
    """Return prompts with `shared` tokens in common, of 0.5 to 1.5 times `prompt` tokens."""
    random = np.random.default_rng(0)
    common = random.integers(10, vocab, shared).tolist()
    samples = []
    for _ in range(number):
        length = int(prompt * random.uniform(0.5, 1.5))
        own = random.integers(10, vocab, max(4, length - shared)).tolist()
        answer = Segment(token_ids=random.integers(10, vocab, 8).tolist())
        samples.append(TokenSample(prompt_ids=common + own, segments=(answer,)))
    return samples


def seconds(policy: Policy, samples: Sequence[TokenSample], max_tokens: int) -> float:
    """Return the seconds of forward and backward of all samples."""
    gpu = policy.device.type == "cuda"
    clock = time.process_time if torch.get_num_threads() == 1 and not gpu else time.perf_counter
    cut = MicroBatches(max_tokens=max_tokens, padded=policy.padded, as_held=not policy.padded)
    started = clock()
    table = TokenTable.of(samples)
    for indices, _ in cut(table):
        scores = policy(policy.inputs(table.take(indices)))
        scores.logprobs_N.sum().backward()
    if gpu:
        torch.cuda.synchronize()
    return clock() - started


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    """Measure and print; returns the medians' ratios, by whether prompts share a prefix."""
    arguments = parser(
        __doc__,
        model=("smollm2-135m", "model.name of a run"),
        samples=32,
        prompt=(200, "mean tokens"),
        vocab=(30_000, "number of token ids"),
        max_tokens=(4096, "of a micro-batch"),
        rounds=3,
    ).parse_args(argv)
    config = ModelConfig(name=arguments.model, adapter=AdapterConfig())
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    policies = {
        name: Policy(attach_lora(load_model(config, attention=attention), config.lora, 0))
        for name, attention in (("packed", ATTENTION), ("padded", "sdpa"))
    }
    found = {}
    for alike, share in (("apart", 0.0), ("alike", 0.75)):
        shared = int(share * arguments.prompt)
        samples = make_samples(arguments.samples, arguments.prompt, shared, arguments.vocab)
        took: dict[str, list[float]] = {name: [] for name in policies}
        for _ in range(arguments.rounds):
            for name, policy in policies.items():
                policy.to(device)
                seconds(policy, samples[:2], arguments.max_tokens)  # warm-up
                took[name].append(seconds(policy, samples, arguments.max_tokens))
        packed, padded = (statistics.median(took[name]) for name in ("packed", "padded"))
        found[alike] = padded / packed
        print(f"{alike}: packed {packed:.2f} s, padded {padded:.2f} s, {padded / packed:.2f} x")
    return found


if __name__ == "__main__":
    main()
