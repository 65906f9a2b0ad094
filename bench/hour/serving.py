"""The engine's steps: games against raw requests, adapters, publishing, sleep, agreement."""

import asyncio
import multiprocessing
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from safetensors.torch import load, save

from bench.hour.job import Job, Skip
from bench.rollout import Recorder, bench_config, game_specs, play, timed
from unstable.config import LearnerConfig, RunConfig
from unstable.engines.base import Engine, SamplingRequest
from unstable.engines.kinds import make_engine
from unstable.engines.probe import probe_adapters
from unstable.learners.model.load import load_policy
from unstable.learners.ranks import ALONE
from unstable.models.adapters import read_adapter, write_adapter
from unstable.models.shape import read_shape
from unstable.planning.machine import this_machine
from unstable.types import Adapter, Completion, PlayerId, TokenSample

_GENTLE = 0.05  # scale of a probe's adapter, so that answers stay near the model's
_CACHE_BYTES = 12_000_000_000  # of all engines on one GPU: 520,000 tokens of SmolLM2
_SHOWN = 6  # code locations of the event loop's thread


def config_of(
    job: Job, model: str, *, max_tokens: int = 64, in_flight: int = 384, **actors: Any
) -> RunConfig:
    """Return the config of an engine for `in_flight` concurrent games."""
    chosen = {"max_loras": 9, "max_cpu_loras": 64, "gpu_memory": 0.4, "enforce_eager": job.dry}
    return bench_config(
        model,
        job.engine,
        in_flight=job.sized(in_flight, 3),
        max_tokens=job.sized(max_tokens, 4),
        actors=chosen | actors,
    )


def adapters_of(config: RunConfig, number: int) -> list[Adapter]:
    """Return versions main@0 and on, whose answers are near the base's."""
    made = probe_adapters(read_shape(config.model), config.model.lora)[0]
    tensors = load(made.weights)
    found = []
    for version in range(number):
        near = {
            key: (value * _GENTLE if "lora_B" in key else value).roll(version, 0).contiguous()
            for key, value in tensors.items()
        }
        name = PlayerId.policy(version).name
        found.append(Adapter(name=name, weights=save(near), config=made.config))
    return found


async def start(job: Job, config: RunConfig, versions: int) -> tuple[Engine, Any, list[Adapter]]:
    """Return an engine with some versions, its tokenizer and the versions."""
    began = time.perf_counter()
    log = job.folder / f"engine-{job.notes.stem}.log"
    engine, tokenizer = await make_engine(config, log)
    job.note("an engine's start", time.perf_counter() - began, "s", "≤ 60 (SmolLM2)")
    if job.engine == "vllm":
        from unstable.engines.vllm.core import phases_of

        for name, seconds in phases_of(log.read_text(errors="replace")).items():
            job.note(f"of a start: {name}", seconds, "s")
    adapters = adapters_of(config, versions)
    for each in adapters:
        await engine.load(each)
    return engine, tokenizer, adapters


async def ask_all(
    engine: Engine, chains: Sequence[Sequence[SamplingRequest]], names: Sequence[str]
) -> int:
    """Repeat recorded requests, sequentially per game, with games spread over the adapters.

    Returns the number of sampled tokens.
    """
    await engine.forget_prefixes()

    async def ask(index: int) -> int:
        name = names[index % len(names)]
        answers = [await engine.generate(replace(each, adapter=name)) for each in chains[index]]
        return sum(len(answer.token_ids) for answer in answers)

    return sum(await asyncio.gather(*map(ask, range(len(chains)))))


async def speed(work: Awaitable[int]) -> float:
    """Return sampled tokens per second."""
    seconds, tokens = await timed(work)
    return tokens / seconds


def _prompts(job: Job, config: RunConfig, places: int) -> list[list[SamplingRequest]]:
    """Return requests like those of games' turns: 200 common ids, then 60 distinct ones."""
    turns, common, own = job.sized((8, 200, 60), (2, 20, 6))
    vocabulary = read_shape(config.model).vocabulary
    chance = np.random.default_rng(0)
    rules = chance.integers(vocabulary, size=common).tolist()
    most = config.sampling.max_tokens
    return [
        [
            SamplingRequest(
                prompt_ids=[*rules, *chance.integers(vocabulary, size=own).tolist()],
                adapter=None,
                temperature=1.0,
                max_tokens=most,
                seed=seed,
            )
            for seed in range(turns)
        ]
        for _ in range(places)
    ]


def small(job: Job) -> None:
    """Measure SmolLM2 with 384 games, in every respect of one engine."""
    asyncio.run(_whole(job, job.small, ratio_aim="", aim="≥ 20,000 (H200)"))


def large(job: Job) -> None:
    """Measure the shape of Qwen3-1.7B in the same way."""
    asyncio.run(_whole(job, job.shaped(), ratio_aim="≥ 0.95", aim=""))


async def _whole(job: Job, model: str, *, ratio_aim: str, aim: str) -> None:
    config = config_of(job, model)
    engine, tokenizer, adapters = await start(job, config, job.sized(8, 2))
    games = job.sized(384, 3)
    played: Recorder | None = None
    for tokens in job.sized((64, 16), (4,)):
        sampling = config.sampling.model_copy(update={"max_tokens": tokens})
        asked = config.model_copy(update={"sampling": sampling})
        await play(asked, Recorder(engine), tokenizer, game_specs(job.sized(games, 1), 0))  # warm
        await engine.forget_prefixes()
        played = Recorder(engine)
        cores, began = time.process_time(), time.perf_counter()
        with Places() as places:
            rate = await speed(
                play(asked, played, tokenizer, game_specs(job.sized(2, 1) * games, games))
            )
        busy = (time.process_time() - cores) / (time.perf_counter() - began)
        lengths = [len(answer.token_ids) for _, answer in played.answers]
        job.note(f"mean answer ({tokens})", statistics.mean(lengths), "tokens")
        job.note(f"cores of the process with the games ({tokens})", busy, "", "< 1")
        raw = await speed(ask_all(engine, [*played.chains.values()], [adapters[0].name]))
        job.note(f"games, answers of {tokens} tokens at most", rate, "sampled tokens/s", aim)
        job.note(f"the same requests without games ({tokens})", raw, "sampled tokens/s")
        job.note(f"games vs. raw ({tokens})", rate / raw, "x", ratio_aim)
        for place, share in places.most():
            job.note(f"event loop in {place} ({tokens})", share, "% of samples")
    assert played is not None
    chains = [*played.chains.values()]
    await _prepared(job, engine, chains, [each.name for each in adapters])
    await _mixed(job, engine, chains, adapters)
    await _published(job, engine, config, adapters[0])
    await _agrees(job, config, adapters[0], played.answers, engine)


async def _prepared(
    job: Job, engine: Any, chains: Sequence[Sequence[SamplingRequest]], names: Sequence[str]
) -> None:
    """Compare LoRA metadata made on the CPU with vLLM's own, alternating, in one engine."""
    if not job.card:
        return  # vLLM's CPU build has no such kernels
    rates: dict[bool, list[float]] = {True: [], False: []}
    await ask_all(engine, chains, names)  # warm
    for on in (True, False) * 2:
        (found,) = await engine._llm.collective_rpc("prepare_loras_on_cpu", args=(on,))
        assert found == on, "vLLM's own differs; see the engine's log"
        rates[on].append(await speed(ask_all(engine, chains, names)))
    await engine._llm.collective_rpc("prepare_loras_on_cpu", args=(True,))
    ours, theirs = (statistics.mean(rates[on]) for on in (True, False))
    job.note("LoRA metadata made on the CPU vs. by vLLM", ours / theirs, "x", "≥ 1.2")


async def _mixed(
    job: Job,
    engine: Engine,
    chains: Sequence[Sequence[SamplingRequest]],
    adapters: Sequence[Adapter],
) -> None:
    names = [adapter.name for adapter in adapters]
    one = await speed(ask_all(engine, chains, names[:1]))
    mixed = await speed(ask_all(engine, chains, names))
    job.note(f"{len(names)} adapters vs. one", mixed / one, "x", "≥ 0.8")


async def _published(job: Job, engine: Engine, config: RunConfig, adapter: Adapter) -> None:
    """Measure the time from a version in memory, through disk, to its first token, under load."""
    chains = _prompts(job, config, job.sized(384, 2))
    took = []
    for version in job.sized((100, 101, 102), (100,)):
        house = asyncio.create_task(ask_all(engine, chains, [adapter.name]))
        await asyncio.sleep(job.sized(1.0, 0.05))
        began = time.perf_counter()
        folder = job.folder / f"published-{version}-{time.time_ns()}"
        await asyncio.to_thread(_write, adapter, folder)
        name = PlayerId.policy(version).name
        await engine.load(await asyncio.to_thread(read_adapter, folder, name))
        await engine.generate(replace(chains[0][0], adapter=name, max_tokens=1))
        took.append(time.perf_counter() - began)
        await house
    job.note("publish to first token, at full load", sorted(took)[len(took) // 2], "s", "< 1")


def _write(adapter: Adapter, folder: Path) -> None:
    folder.mkdir()
    write_adapter(adapter, folder)


async def _agrees(
    job: Job,
    config: RunConfig,
    adapter: Adapter,
    answers: Sequence[tuple[list[int], Completion]],
    engine: Engine,
    dtype: torch.dtype | None = None,
) -> None:
    """Note the share of tokens with learner/engine ratios outside [0.9, 1.1]; ends the engine."""
    await engine.close()
    policy = load_policy(config.model, LearnerConfig(), 0, adapter, ALONE)
    if dtype is not None:
        policy.to(dtype)
    gaps = []
    with torch.no_grad():
        for first in range(0, min(len(answers), 16 * 32), 16):
            part = answers[first : first + 16]
            samples = [TokenSample(prompt_ids=ids, segments=(answer,)) for ids, answer in part]
            ours = policy(policy.inputs(samples)).logprobs_N.cpu().numpy()
            theirs = [value for _, answer in part for value in answer.logprobs]
            gaps.append(ours - np.array(theirs))
    ratios = np.exp(np.concatenate(gaps))
    outside = 100 * float(np.mean((ratios < 0.9) | (ratios > 1.1)))
    name = str(dtype or policy.trained.parameters[0].dtype).removeprefix("torch.")
    name = name if dtype is not None else config.model.dtype
    job.note(f"ratios outside [0.9, 1.1], {name}", outside, "% of tokens")
    job.note(f"mean absolute log ratio, {name}", float(np.abs(np.log(ratios)).mean()), "nats")


def half(job: Job) -> None:
    """Compare engine and learner in fp16, which no run uses."""
    asyncio.run(_half(job))


async def _half(job: Job) -> None:
    from unstable.engines.vllm import engine as vllm_engine

    if job.engine != "vllm":
        raise Skip("no vLLM; the embedded engine has no fp16")

    def fp16(name: str) -> torch.dtype:
        return torch.float16

    vllm_engine.resolve_dtype = fp16
    config = config_of(job, job.small)
    engine, tokenizer, (adapter,) = await start(job, config, 1)
    played = Recorder(engine)
    await play(config, played, tokenizer, game_specs(job.sized(128, 2), 0))
    await _agrees(job, config, adapter, played.answers, engine, torch.float16)


def sleeping(job: Job) -> None:
    """Compare greedy answers before sleep and after each wake, of the base and an adapter."""
    asyncio.run(_sleeping(job))


async def _sleeping(job: Job) -> None:
    can = job.card or job.engine == "embedded"
    chosen: dict[str, Any] = {"share_gpu": "sleep"} if can else {}
    config = config_of(job, job.small, in_flight=16, **chosen)
    engine, _, (adapter,) = await start(job, config, 1)
    greedy = replace(_prompts(job, config, 1)[0][0], temperature=0.0, max_tokens=4)

    async def answers() -> list[list[int]]:
        names = (None, adapter.name)
        return [(await engine.generate(replace(greedy, adapter=name))).token_ids for name in names]

    before, same, took = await answers(), 0, []
    for _ in range(3):
        began, full = time.perf_counter(), _free_gb()
        if can:
            await engine.sleep()
            job.note("memory that sleep gives back", _free_gb() - full, "GB")
            await engine.wake()
        took.append(time.perf_counter() - began)
        same += await answers() == before
    await engine.close()
    job.note("cycles after which base and adapter answer identically", float(same), "of 3", "3")
    job.note("sleep and wake", sorted(took)[1], "s")
    if not can:
        raise Skip("vLLM's CPU build cannot sleep; answers were compared without it")


def _free_gb() -> float:
    return sum(gpu.free_bytes for gpu in this_machine().gpus) / 1e9


def slots(job: Job) -> None:
    """Measure 32 versions, with 8 and with 33 LoRA slots."""
    versions, slots = job.sized((32, (8, 33)), (3, (2, 3)))
    for number in slots:
        rate = asyncio.run(_alone(job, versions, max_loras=number))
        job.note(f"{versions} versions, actors.max_loras {number}", rate, "sampled tokens/s")


def prefill(job: Job) -> None:
    """Measure with 2,048 and with 8,192 tokens per step."""
    if job.engine != "vllm":
        raise Skip("no vLLM; the embedded engine has no such limit")
    for bound in (2048, 8192):
        _override(max_num_batched_tokens=bound)
        rate = asyncio.run(_alone(job, 1))
        job.note(f"max_num_batched_tokens {bound}", rate, "sampled tokens/s")


async def _alone(job: Job, versions: int, **actors: Any) -> float:
    """Return sampled tokens/s of an engine without games, over some versions."""
    config = config_of(job, job.small, **actors)
    engine, _, adapters = await start(job, config, versions)
    chains, names = _prompts(job, config, job.sized(384, 3)), [each.name for each in adapters]
    await ask_all(engine, [chain[:1] for chain in chains], names)  # warm
    rate = await speed(ask_all(engine, chains, names))
    await engine.close()
    return rate


def several(job: Job) -> None:
    """Measure one engine for all requests, then several that divide the GPU equally."""
    rates: dict[int, float] = {}
    spawn = multiprocessing.get_context("spawn")
    for number in job.sized((1, 2, 4), (1, 2)):
        with spawn.Manager() as manager, ProcessPoolExecutor(number, spawn) as processes:
            barrier = manager.Barrier(number)
            given = [processes.submit(_one_of, job, i, number, barrier) for i in range(number)]
            rates[number] = sum(each.result() for each in given)
        job.note(f"engines on the GPU: {number}", rates[number], "sampled tokens/s")
    best = max(rates.values()) / rates[1]
    job.note("best vs. one engine", best, "x", "≥ 1.2 (SmolLM2)")


def _one_of(job: Job, index: int, number: int, barrier: Any) -> float:
    job.notes = job.notes.with_name(f"{job.notes.stem}-{index}.json")
    return asyncio.run(_beside(job, number, barrier))


async def _beside(job: Job, number: int, barrier: Any) -> float:
    """Return sampled tokens/s of one of several concurrent engines."""
    share = 0.8 / number
    config = config_of(job, job.small, in_flight=384 // number, gpu_memory=share, max_loras=2)
    if job.card:  # else each engine measures how much memory is free, which others change
        _override(kv_cache_memory_bytes=_CACHE_BYTES // number)
    engine, _, (adapter,) = await start(job, config, 1)
    await asyncio.to_thread(barrier.wait)
    chains = _prompts(job, config, job.sized(384 // number, 2))
    rate = await speed(ask_all(engine, chains, [adapter.name]))
    await engine.close()
    return rate


def _override(**values: Any) -> None:
    """Set arguments of the vLLM engines that this process starts from now on."""
    from unstable.engines.vllm import core

    make = core._engine_args

    def overridden(settings: Any) -> Any:
        arguments = make(settings)
        vars(arguments).update(values)
        return arguments

    core._engine_args = overridden


class Places:
    """A sampling profiler: the main thread's position every ten milliseconds."""

    def __init__(self) -> None:
        self._main = threading.main_thread().ident
        self._seen: Counter[str] = Counter()
        self._over = threading.Event()

    def __enter__(self) -> "Places":
        threading.Thread(target=self._look, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _look(self) -> None:
        while not self._over.wait(0.01):
            frame = sys._current_frames().get(self._main or 0)
            if frame is not None:
                self._seen[_place(frame)] += 1

    def most(self) -> list[tuple[str, float]]:
        """Return the most frequent places, with their shares in percent."""
        total = self._seen.total() or 1
        return [(place, 100 * seen / total) for place, seen in self._seen.most_common(_SHOWN)]


def _place(frame: FrameType) -> str:
    """Return the file and function of a frame; waiting is in the selector."""
    code = frame.f_code
    return f"{'/'.join(Path(code.co_filename).parts[-2:])}:{code.co_name}"
