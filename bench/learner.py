"""Speed of the learner, compared with a plain padded loop and with micro-batches of one sample.

    python -m bench.learner [--threads 2] [--rounds 3] [--shape 1.7b] [--compile]

All do the same update: 64 samples with skewed lengths, forward, backward and a step of AdamW on a
LoRA. Ids are random, since they do not affect the cost; "shared prefixes" are three quarters of
each prompt, like the rules of a game. The ways alternate, each time in a new process, for its peak
memory. Tokens are counted without padding and sharing. With one thread, seconds are CPU seconds,
which other work on the machine disturbs less. Each GPU process first makes two full updates as
warm-up, with the allocator settings of a run.
"""

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config

from bench import forks, parser
from unstable.config import AdapterConfig, LearnerConfig, ModelConfig
from unstable.learners.learner import PolicyLearner
from unstable.learners.model.policy import Policy
from unstable.models.adapters import attach_lora
from unstable.models.base import load_model
from unstable.types import Batch, Completion, Group, Reward, Sample, SampledTokens, Trajectory

PADDED_SIZE = 8
SHAPES = {
    "1.7b": Qwen3Config(
        vocab_size=151936,
        hidden_size=2048,
        intermediate_size=6144,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40960,
        tie_word_embeddings=True,
    )
}


@dataclass(frozen=True, slots=True)
class Task:
    """A process's input."""

    model: ModelConfig
    learner: LearnerConfig
    batch: Batch
    threads: int


Run = Callable[[Batch], None]
"""A function that does one update on a batch."""


def make_batch(number: int, prompt: int, low: int, high: int, *, shared: int, vocab: int) -> Batch:
    """Return samples of `prompt` + `low` to `high` tokens, most of them short.

    All prompts share their first `shared` tokens, which does not change lengths and answers. Each
    sample is a group.
    """
    random = np.random.default_rng(0)
    common = np.random.default_rng(1).integers(10, vocab, shared).tolist()
    groups = []
    for index in range(number):
        length = int(low + (high - low) * random.random() ** 2)
        prompt_ids = common + random.integers(10, vocab, prompt).tolist()[shared:]
        completion = Completion(
            token_ids=random.integers(10, vocab, length).tolist(),
            logprobs=[-10.0] * length,
            finish_reason="stop",
            adapter="main@0",
        )
        tokens = SampledTokens(
            prompt_ids=prompt_ids, segments=(completion,), version=0, temperature=1.0
        )
        reward = float(random.integers(-1, 2))
        trajectory = Trajectory(
            game_id=index,
            env="bench",
            seat=index % 2,
            group_id=index,
            outcome=0.0,
            forfeit=False,
            samples=(Sample(turn=0, tokens=tokens, rewards={"outcome": Reward(reward, reward)}),),
        )
        groups.append(Group(trajectories=(trajectory,)))
    return Batch(version=0, groups=tuple(groups))


def ours(task: Task) -> Run:
    """Return an update by the learner that runs use, with its metrics."""
    learner = PolicyLearner(task.model, task.learner, updates=100, max_tokens=2048, seed=0)

    def run(batch: Batch) -> None:
        learner.update(replace(batch, version=learner.version))

    return run


def plain(task: Task, *, size: int, tuned: bool = False, recompute: bool = False) -> Run:
    """Return an update of `size` padded samples at a time, by transformers and PEFT alone.

    `tuned`: sorted by length, logits of sampled tokens alone. `recompute`: gradient checkpointing.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = attach_lora(load_model(task.model), task.model.lora, seed=0).to(device)
    if recompute:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.train()
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    adamw = torch.optim.AdamW(parameters, lr=1e-4)

    def run(batch: Batch) -> None:
        samples = batch.samples
        if tuned:
            samples = sorted(samples, key=lambda sample: sample.tokens.length)
        total = sum(len(sample.tokens.token_ids) for sample in samples)
        for start in range(0, len(samples), size):
            loss = padded_loss(model, samples[start : start + size], device, everywhere=not tuned)
            (loss / total).backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adamw.step()
        adamw.zero_grad()

    return run


def padded_loss(
    model: Any, samples: Sequence[Sample], device: torch.device, *, everywhere: bool
) -> Tensor:
    """Return -sum(reward x logprob) of the sampled tokens; logits of all tokens if `everywhere`."""
    longest = max(sample.tokens.length for sample in samples)
    ids_BT = torch.zeros(len(samples), longest, dtype=torch.long)
    mask_BT = torch.zeros(len(samples), longest, dtype=torch.long)
    sampled_BT = torch.zeros(len(samples), longest, dtype=torch.bool)
    for row, sample in enumerate(samples):
        tokens, length = sample.tokens, sample.tokens.length
        ids_BT[row, :length] = torch.tensor([*tokens.prompt_ids, *tokens.token_ids])
        mask_BT[row, :length] = 1
        sampled_BT[row, len(tokens.prompt_ids) : length] = True
    ids_BT, mask_BT, sampled_BT = (x.to(device) for x in (ids_BT, mask_BT, sampled_BT))
    rewards_B = torch.tensor([sample.reward for sample in samples], device=device)
    rewards_N = rewards_B[:, None].expand_as(sampled_BT)[:, 1:][sampled_BT[:, 1:]]
    causal_model = model.get_base_model()
    hidden_BTD = causal_model.get_decoder()(
        input_ids=ids_BT, attention_mask=mask_BT, use_cache=False
    ).last_hidden_state[:, :-1]
    head = causal_model.get_output_embeddings()
    targets_BT, chosen_BT = ids_BT[:, 1:], sampled_BT[:, 1:]
    if everywhere:
        rows = zip(head(hidden_BTD), targets_BT, strict=True)
        logprobs = [
            logits_TV.float().log_softmax(-1).gather(-1, targets_T[:, None])[:, 0]
            for logits_TV, targets_T in rows
        ]
        logprobs_N = torch.stack(logprobs)[chosen_BT]
    else:
        logprobs_NV = head(hidden_BTD[chosen_BT]).float().log_softmax(-1)
        logprobs_N = logprobs_NV.gather(-1, targets_BT[chosen_BT][:, None])[:, 0]
    return -(rewards_N * logprobs_N).sum()


def padded(task: Task) -> Run:
    return plain(task, size=PADDED_SIZE)


def tuned(task: Task) -> Run:
    return plain(task, size=PADDED_SIZE, tuned=True)


def one_by_one(task: Task) -> Run:
    return plain(task, size=1, recompute=True)


@contextmanager
def unfused(policy: Policy) -> Iterator[None]:
    """Compute norms by transformers' modules during the block."""
    fused = [each for each in policy.modules() if type(each).__name__.endswith("RMSNorm")]
    kept = [vars(each).pop("forward", None) for each in fused]
    try:
        yield
    finally:
        for each, forward in zip(fused, kept, strict=True):
            if forward is not None:
                vars(each)["forward"] = forward


def separate(policy: Policy) -> None:
    """Have each layer compute its LoRA alone, also layers that read one input."""
    for module in policy.modules():
        vars(module).pop("siblings", None)


def measure(way: Callable[[Task], Run], task: Task) -> tuple[float, float]:
    """Return seconds of one update, and this new process's peak memory in GB."""
    torch.set_num_threads(task.threads)
    torch.manual_seed(0)
    gpu = torch.cuda.is_available()
    clock = time.process_time if task.threads == 1 and not gpu else time.perf_counter
    update = way(task)
    warm = (
        [task.batch] * 2 if gpu else [replace(task.batch, groups=task.batch.groups[:PADDED_SIZE])]
    )
    for batch in warm:
        update(batch)
    if gpu:
        torch.cuda.synchronize()
    started = clock()
    update(task.batch)
    if gpu:
        torch.cuda.synchronize()
    seconds = clock() - started
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return seconds, (torch.cuda.max_memory_allocated() if gpu else used) / 1e9


def model_config(arguments: argparse.Namespace, scratch: Path) -> ModelConfig:
    """Return the named model, or random weights of a shape, written to `scratch`."""
    name = arguments.model
    if arguments.shape:
        name = str(scratch)
        shaped = AutoModelForCausalLM.from_config(SHAPES[arguments.shape], dtype=torch.bfloat16)
        shaped.save_pretrained(scratch)
    rank = arguments.rank or (32 if arguments.shape else 16)
    return ModelConfig(name=name, adapter=AdapterConfig(rank=rank, alpha=2 * rank))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    vocab, model = (30_000, "number of token ids"), ("smollm2-135m", "model.name of a run")
    options = parser(__doc__, model=model, threads=2, rounds=3, samples=64, vocab=vocab)
    options.add_argument("--shape", choices=SHAPES, help="random weights of this shape, no --model")
    options.add_argument("--rank", type=int, help="LoRA rank; default: 32 with --shape, else 16")
    options.add_argument("--device", choices=["cuda", "cpu"], help="default: a GPU if available")
    options.add_argument(
        "--micro_batch_tokens", type=int, help="default: 16384 on a GPU, else 4096"
    )
    options.add_argument("--checkpointing", action="store_true", help="ours recomputes activations")
    options.add_argument("--compile", action="store_true", help="ours compiles its layers")
    options.add_argument("--only", nargs="+", help="names of implementations to measure")
    return options.parse_args(argv)


class Speed(NamedTuple):
    """The median of a way's rounds."""

    tokens_s: float
    peak_gb: float


def main(argv: Sequence[str] | None = None) -> dict[str, Speed]:
    """Measure the ways that the command line selects, and print them."""
    arguments = parse(argv)
    if arguments.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    gpu = torch.cuda.is_available()
    if gpu:
        os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # as in a run
    lengths = (300, 200, 1700) if gpu else (60, 40, 340)
    samples, vocab = arguments.samples, arguments.vocab
    apart = make_batch(samples, *lengths, shared=0, vocab=vocab)
    alike = make_batch(samples, *lengths, shared=3 * lengths[0] // 4, vocab=vocab)
    tokens = sum(sample.tokens.length for sample in apart.samples)
    assert tokens == sum(sample.tokens.length for sample in alike.samples)
    learner = LearnerConfig(
        batch_size=arguments.samples,
        micro_batch_size=arguments.samples,  # only tokens bound it
        micro_batch_tokens=arguments.micro_batch_tokens or (16384 if gpu else 4096),
        gradient_checkpointing="on" if arguments.checkpointing else "off",
        compile=arguments.compile,
    )
    ways: dict[str, tuple[Callable[[Task], Run], Batch]] = {
        "padded": (padded, apart),
        "padded, tuned": (tuned, apart),
        "one by one, recomputed": (one_by_one, apart),
        "ours": (ours, apart),
        "ours, shared prefixes": (ours, alike),
    }
    chosen = {name: ways[name] for name in arguments.only or ways}
    seconds: dict[str, list[float]] = {name: [] for name in chosen}
    peaks: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as scratch:
        model = model_config(arguments, Path(scratch))
        for _ in range(arguments.rounds):
            for name, (way, batch) in chosen.items():
                with ProcessPoolExecutor(1, forks("bench.learner")) as process:
                    task = Task(model, learner, batch, arguments.threads)
                    second, peaks[name] = process.submit(measure, way, task).result()
                seconds[name].append(second)
                print(f"{name}: {tokens / second:.0f} tokens/s", flush=True)
    print(f"\n{arguments.samples} samples, {tokens} tokens, medians of {arguments.rounds} rounds")
    found = {
        name: Speed(tokens / statistics.median(took), peaks[name]) for name, took in seconds.items()
    }
    first = next(iter(found))
    for name, (tokens_s, peak_gb) in found.items():
        ratio = tokens_s / found[first].tokens_s
        print(f"{name:24} {tokens_s:8.0f} tokens/s {peak_gb:6.1f} GB {ratio:6.2f} x {first}")
    return found


if __name__ == "__main__":
    main()
