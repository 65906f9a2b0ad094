"""The learner's steps: speed, memory, profile, and a check of gradients with prefix sharing."""

import contextlib
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench import learner as bench
from bench.hour.job import Job
from bench.learner import make_batch, separate, unfused
from unstable.config import AdapterConfig, LearnerConfig, ModelConfig
from unstable.learners.learner import PolicyLearner
from unstable.learners.model import policy as policy_module
from unstable.learners.model.load import load_policy
from unstable.learners.model.logprobs import Chunk
from unstable.learners.model.packing import pack_samples
from unstable.learners.model.policy import Policy
from unstable.learners.ranks import ALONE
from unstable.types import Batch, TokenSample

ALIKE = "ours, shared prefixes"
VOCABULARY = 90
"""Number of ids in a dry step: the tiny model has few."""
_EVENTS = ("cudaStreamSynchronize", "index_put", "elementwise", "aten::mm", "memcpy")


def _measured(job: Job, model: str, rank: int, *options: str) -> dict[str, bench.Speed]:
    small = ["--samples", "4", "--vocab", str(VOCABULARY), "--threads", "1"]
    words = ["--model", model, "--rank", str(rank), "--rounds", "1", *options]
    return bench.main([*words, *job.sized([], small)])


def large(job: Job) -> None:
    """Measure variants of the learner at the shape of Qwen3-1.7B, in one process."""
    learner, batch = _learner(job), _skewed(job)
    speeds = {"eager": _timed(job, learner, batch, "eager", "≥ 40,000 (H100)")}
    job.note("its peak memory", _peak_gb(job), "GB", "< 45")
    _note_busy(job, learner, batch)
    with unfused(learner.policy):
        speeds["transformers' norms"] = _timed(job, learner, batch, "transformers' norms")
    for rows in job.sized((512, 1024), (2,)):
        with _chunks_of(rows):
            name = f"head in chunks of {rows} rows"
            speeds[name] = _timed(job, learner, batch, name)
    separate(learner.policy)
    speeds["LoRA of each layer alone"] = _timed(job, learner, batch, "LoRA of each layer alone")
    for name in [*speeds][1:]:
        job.note(f"{name} vs. eager", speeds[name] / speeds["eager"], "x")


def compiled(job: Job) -> None:
    """Measure compiled layers with a compiled and a plain head, and the time to compile."""
    learner, batch = _learner(job), _skewed(job)
    if not job.dry:  # compilation takes minutes on a CPU
        learner.policy.compile_parts()
    began = time.perf_counter()
    _update(learner, batch)
    job.note("first update, with compilation", time.perf_counter() - began, "s")
    _timed(job, learner, batch, "compiled", "≥ 47,000 (H100)")
    job.note("its peak memory", _peak_gb(job), "GB", "< 45")
    learner.policy.chunk = Chunk
    _timed(job, learner, batch, "compiled layers, plain head")


def _learner(job: Job) -> PolicyLearner:
    """Return the learner of a run at the large shape; a GPU allocates as in a run."""
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")
    tokens, samples = job.sized((16_384, 64), (512, 4))
    config = LearnerConfig(
        batch_size=samples,
        micro_batch_size=samples,
        micro_batch_tokens=tokens,
        gradient_checkpointing="off",
    )
    return PolicyLearner(_model(job), config, updates=1000, max_tokens=2048, seed=0)


def _skewed(job: Job) -> Batch:
    """Return the batch of `bench.learner`."""
    sizes, vocabulary = (
        job.sized((64, 300, 200, 1700), (4, 16, 4, 8)),
        job.sized(30_000, VOCABULARY),
    )
    return make_batch(*sizes, shared=0, vocab=vocabulary)


def _update(learner: PolicyLearner, batch: Batch) -> None:
    learner.update(Batch(version=learner.version, groups=batch.groups))


def _timed(
    job: Job, learner: PolicyLearner, batch: Batch, name: str, aim: str = "", rounds: int = 3
) -> float:
    """Note and return tokens per second: the median update after two others.

    Also notes how often the timed updates allocated memory of the GPU itself.
    """
    seconds, allocated = [], 0
    for number in range(2 + rounds):
        if number == 2:
            allocated = _allocations(job)
        began = time.perf_counter()
        _update(learner, batch)
        if job.card:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    tokens = sum(sample.tokens.length for sample in batch.samples)
    rate = tokens / statistics.median(seconds[2:])
    job.note(f"Qwen3-1.7B's shape, {name}", rate, "tokens/s", aim)
    if job.card:
        job.note(f"cudaMalloc in {rounds} updates, {name}", _allocations(job) - allocated, "", "0")
    return rate


def _allocations(job: Job) -> int:
    return int(torch.cuda.memory_stats().get("num_device_alloc", 0)) if job.card else 0


def _peak_gb(job: Job) -> float:
    return torch.cuda.max_memory_allocated() / 1e9 if job.card else 0.0


def _note_busy(job: Job, learner: PolicyLearner, batch: Batch) -> None:
    """Note the share of an update's wall time in which the GPU works, by torch's profiler."""
    if not job.card:
        return
    with torch.profiler.profile(activities={torch.profiler.ProfilerActivity.CUDA}) as seen:
        began = time.perf_counter()
        _update(learner, batch)
        torch.cuda.synchronize()
        seconds = time.perf_counter() - began
    busy = sum(event.self_device_time_total for event in seen.key_averages()) / 1e6
    job.note("GPU busy in an update, eager", 100 * busy / seconds, "%", "≥ 95")


@contextlib.contextmanager
def _chunks_of(rows: int) -> Iterator[None]:
    """Set the number of rows of logits per chunk of the head during the block."""
    own = policy_module.selected_logprobs
    policy_module.selected_logprobs = partial(own, chunk_rows=rows)
    try:
        yield
    finally:
        policy_module.selected_logprobs = own


def short(job: Job) -> None:
    """Measure with micro-batches of 4,096 tokens, as on a GPU of 24 GB."""
    options = ("--only", "ours", "--micro_batch_tokens", "4096")
    found = _measured(job, job.shaped(), 32, *options)["ours"]
    job.note("Qwen3-1.7B's shape, 4,096 tokens at a time", found.tokens_s, "tokens/s")
    job.note("its peak memory", found.peak_gb, "GB", "< 24")


def small(job: Job) -> None:
    """Measure with SmolLM2."""
    found = _measured(job, job.small, 16, "--only", "ours", ALIKE)
    job.note("SmolLM2", found["ours"].tokens_s, "tokens/s")
    job.note("its peak memory", found["ours"].peak_gb, "GB")
    job.note("SmolLM2, prompts shared", found[ALIKE].tokens_s, "tokens/s")


def _batch(job: Job, samples: int, prompt: int, answer: int, shared: int) -> Batch:
    vocabulary = job.sized(30_000, VOCABULARY)
    return make_batch(samples, prompt, answer, answer, shared=shared, vocab=vocabulary)


def _model(job: Job) -> ModelConfig:
    return ModelConfig(name=job.shaped(), adapter=AdapterConfig(rank=32, alpha=64))


def profile(job: Job) -> None:
    """Profile one update by torch's profiler: kernels, and synchronizations of the queue."""
    learner = _learner(job)
    batch = _batch(job, *job.sized((32, 300, 700), (4, 16, 8)), 0)
    learner.update(batch)
    both = {torch.profiler.ProfilerActivity.CPU}
    both |= {torch.profiler.ProfilerActivity.CUDA} if job.card else set()
    with torch.profiler.profile(activities=both) as seen:
        learner.update(Batch(version=1, groups=batch.groups))
    events = seen.key_averages()
    (job.folder / "profile.txt").write_text(
        events.table(sort_by="self_device_time_total" if job.card else "self_cpu_time_total")
    )
    key = "self_device_time_total" if job.card else "self_cpu_time_total"
    whole = sum(getattr(event, key) for event in events)
    for name in _EVENTS:
        mine = [event for event in events if name.lower() in event.key.lower()]
        share = 100 * sum(getattr(event, key) for event in mine) / whole
        job.note(f"{name}, share of time", share, "%")
        job.note(f"{name}, calls per update", float(sum(event.count for event in mine)))
    if job.card:
        job.note("memory that torch reserved", torch.cuda.max_memory_reserved() / 1e9, "GB")


def prefix(job: Job) -> None:
    """Compare gradients with and without a shared prefix, as a cosine."""
    count, length, shared = job.sized((64, 300, 225), (4, 16, 12))
    samples = [each.tokens for each in _batch(job, count, length, 8, shared).samples]
    policy = _policy(job)
    packs = {
        "shared": [policy.inputs(samples)],
        "apart": [policy.inputs([sample]) for sample in samples],
    }
    found = {name: _gradient(policy, each) for name, each in packs.items()}
    cosine = torch.cosine_similarity(found["shared"], found["apart"], dim=0)
    job.note("cosine of gradients with and without sharing", float(cosine), "", "> 0.999")


def _policy(job: Job) -> Policy:
    config = LearnerConfig(gradient_checkpointing="off")
    return load_policy(_model(job), config, 0, None, ALONE)


def _gradient(policy: Policy, packs: Sequence[Any]) -> Tensor:
    policy.zero_grad()
    for pack in packs:
        policy(pack).logprobs_N.sum().backward()
    gradients = [each.grad for each in policy.trained.parameters if each.grad is not None]
    return torch.cat([each.flatten().double() for each in gradients])


def masks(job: Job) -> None:
    """Measure packing and a pass of four answers of 4,000 tokens, and the cost of masks."""
    answer = job.sized(4000, 40)
    tokens: list[TokenSample] = [each.tokens for each in _batch(job, 4, 64, answer, 48).samples]
    policy = _policy(job)
    device = policy.device

    def synced() -> float:
        if job.card:
            torch.cuda.synchronize()
        return time.perf_counter()

    policy(pack_samples(tokens)).logprobs_N.sum().backward()  # warm-up
    began = synced()
    pack = pack_samples(tokens)
    packed = synced()
    policy(pack).logprobs_N.sum().backward()
    passed = synced()
    made = [shape.mask(None, device) for shape in pack.segments.shapes]
    masked = synced()
    job.note("packing", 1000 * (packed - began), "ms")
    job.note("a pass, forward and backward", 1000 * (passed - packed), "ms")
    job.note("masks, if they are made", 1000 * (masked - passed), "ms", "not made on a GPU")
    job.note("their size", sum(mask.numel() for mask in made) / 1e6, "MB")
