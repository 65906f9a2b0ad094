"""Division of memory, so that an engine and a learner fit on their devices."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from unstable.config import ConfigError, RunConfig
from unstable.planning.memory import GB, EngineMemory, LearnerMemory

MAX_GPU_MEMORY = 0.9
"""Share of a GPU for an engine that is alone on it."""
SPLIT_GAMES = 16
"""Games of the greatest length that must fit beside a learner; otherwise alternating is better."""
ENOUGH_TOKENS = 4096
"""Micro-batches this large keep a GPU busy; smaller ones cost more than recomputing activations."""
ROUNDING = 256
"""Multiple, in tokens, to which a chosen micro-batch size is rounded down."""
_SHARES = [share / 20 for share in range(1, 20)]

Mode = Literal["sync", "async"]
Share = Literal["off", "split", "sleep"]


class DoesNotFitError(Exception):
    """Lack of memory, which callers try to remedy."""


class Device(NamedTuple):
    """Memory to divide: of the CPU, or of the smallest of several GPUs."""

    name: str
    total_bytes: int
    free_bytes: int
    on_gpu: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Memory for an engine and a learner rank, on separate devices or on a shared one."""

    mode: Mode
    share: Share
    gpu_memory: float  # the engine's share of its device's memory
    engine_bytes: int
    learner_bytes: int


class Batches(NamedTuple):
    """Micro-batches that fit into a learner's memory."""

    checkpointing: bool
    limit_tokens: int | None  # learner.micro_batch_tokens
    most_tokens: int  # of a micro-batch


def fit_batches(
    config: RunConfig, memory: LearnerMemory, limit_bytes: int, longest: int, device: Device
) -> Batches:
    """Return the largest micro-batches that fit, with checkpointing only if small without it.

    `learner.micro_batch_tokens` is set if `micro_batch_size` samples of the `longest` prompt and
    answer might not fit, so that no game can exceed the limit, and on a GPU whenever the number of
    samples is open. Raises `DoesNotFitError`.
    """
    learner = config.learner
    asked = learner.micro_batch_tokens
    samples, tokens = learner.micro_batch_limits(on_gpu=device.on_gpu)
    whole = max(tokens or 0, longest) if samples is None or tokens else samples * longest
    ways = {"auto": (False, True), "on": (True,), "off": (False,)}[learner.gradient_checkpointing]
    for checkpointing in ways:
        most = memory.tokens(limit_bytes, checkpointing)
        if most >= whole:
            return Batches(checkpointing, tokens, whole)
        may_be_small = checkpointing is ways[-1] or not device.on_gpu
        least = longest if may_be_small else max(longest, min(whole, ENOUGH_TOKENS))
        if asked is None and most >= least:
            most = max(longest, most - most % ROUNDING)
            return Batches(checkpointing, most, most)
    least = longest if asked is None else whole
    raise DoesNotFitError(
        f"{device.name}: the learner needs {memory.total(least, ways[-1]) / GB:.1f} GB for "
        f"{least:,} tokens at a time, but only {limit_bytes / GB:.1f} GB are available"
    )


def engine_alone(
    config: RunConfig,
    memory: EngineMemory,
    device: Device,
    longest: int,
    *,
    learner_bytes: int,
    per_card: int,
) -> Budget:
    """Return the memory for engines on GPUs without a learner, `per_card` engines on each.

    Raises `DoesNotFitError`.
    """
    device = device._replace(free_bytes=device.free_bytes // per_card)
    asked = config.actors.gpu_memory
    free = device.free_bytes / device.total_bytes
    most = min(MAX_GPU_MEMORY / per_card, free)
    share = max(0.001, _rounded(most)) if isinstance(asked, str) else asked
    limit = int(share * device.total_bytes)
    check_engine_fits(memory, limit, device, longest)
    mode: Mode = "sync" if config.loop.mode == "sync" else "async"
    return Budget(
        mode=mode, share="off", gpu_memory=share, engine_bytes=limit, learner_bytes=learner_bytes
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCard:
    """One GPU with a learner and `per_card` engines."""

    config: RunConfig
    engine: EngineMemory
    learner: LearnerMemory
    device: Device
    longest: int  # tokens of a prompt and its answer
    per_card: int

    def budget(self) -> Budget:
        """Return the memory for each: split between them, or alternating, with one asleep.

        If the config leaves the choice open, memory is split if the engines then have a large
        enough cache for `SPLIT_GAMES`. Raises `DoesNotFitError`.
        """
        lacks: list[DoesNotFitError] = []
        resident = sum(self.learner.fixed.values())
        free = (self.device.free_bytes - resident) // self.per_card
        beside = self.device._replace(free_bytes=free)
        for share, games in _ways_to_share(self.config):
            budget = self._split() if share == "split" else self._by_turns()
            tokens = math.ceil(games / self.per_card) * self.longest
            try:
                check_engine_fits(self.engine, budget.engine_bytes, beside, tokens)
                fit_batches(
                    self.config, self.learner, budget.learner_bytes, self.longest, self.device
                )
            except DoesNotFitError as lack:
                lacks.append(lack)
            else:
                return budget
        raise lacks[-1]

    def _split(self) -> Budget:
        """Return a budget that gives each its minimum, and half of the rest."""
        config, device, per_card = self.config, self.device, self.per_card
        asked, least = config.actors.gpu_memory, self.engine.total(self.longest)
        tokens = max(self.longest, config.learner.micro_batch_tokens or 0)
        checkpointing = config.learner.gradient_checkpointing != "off"
        for_learner = self.learner.total(tokens, checkpointing)
        spare = device.free_bytes - per_card * least - for_learner
        most = _rounded((least + spare // 2 // per_card) / device.total_bytes)
        share = max(0.001, most) if isinstance(asked, str) else asked
        engine_bytes = int(share * device.total_bytes)
        return Budget(
            mode="sync" if config.loop.mode == "sync" else "async",
            share="split",
            gpu_memory=share,
            engine_bytes=engine_bytes,
            learner_bytes=max(0, device.free_bytes - per_card * engine_bytes),
        )

    def _by_turns(self) -> Budget:
        """Return a budget that gives each the GPU, except what the other keeps while it waits."""
        asked, device = self.config.actors.gpu_memory, self.device
        left = device.free_bytes - sum(self.learner.fixed.values())
        most = _rounded(min(MAX_GPU_MEMORY, left / device.total_bytes) / self.per_card)
        share = max(0.001, most) if isinstance(asked, str) else asked
        return Budget(
            mode="sync",
            share="sleep",
            gpu_memory=share,
            engine_bytes=int(share * device.total_bytes),
            learner_bytes=max(0, device.free_bytes - self.per_card * self.engine.asleep),
        )


def _ways_to_share(config: RunConfig) -> list[tuple[Share, int]]:
    """List ways to share in order, each with the fewest games that the engine's cache must hold."""
    asked, mode = config.actors.share_gpu, config.loop.mode
    if asked == "sleep" and mode == "async":
        raise ConfigError(
            "actors.share_gpu = 'sleep': conflicts with loop.mode = 'async'; "
            "set loop.mode to sync or actors.share_gpu to split"
        )
    if asked == "sleep" or (asked == "auto" and mode == "sync"):
        return [("sleep", 1)]
    if asked == "split" or mode == "async":
        return [("split", 1)]
    return [("split", SPLIT_GAMES), ("sleep", 1), ("split", 1)]


def check_engine_fits(memory: EngineMemory, limit_bytes: int, device: Device, tokens: int) -> None:
    """Raise `DoesNotFitError` unless an engine with room for `tokens` stays within its limit."""
    needed, free = memory.total(tokens) / GB, max(0, device.free_bytes) / GB
    if limit_bytes > device.free_bytes:
        raise DoesNotFitError(
            f"{device.name}: an actor's engine would take {limit_bytes / GB:.1f} GB (at least "
            f"{needed:.1f}), but only {free:.1f} GB are available"
        )
    if needed * GB > limit_bytes:
        raise DoesNotFitError(
            f"{device.name}: an actor's engine needs {needed:.1f} GB for {tokens:,} cached tokens, "
            f"but only {limit_bytes / GB:.1f} GB are available"
        )


def _rounded(share: float) -> float:
    """Round a share down, so that the rest is never less than planned."""
    return math.floor(1000 * share) / 1000


def smaller(config: RunConfig) -> Iterator[tuple[str, object]]:
    """Yield changes of one number that take less memory, the mildest of each number first."""
    actors, learner = config.actors, config.learner
    asked = actors.gpu_memory
    if asked != "auto":
        for share in sorted(_SHARES, key=lambda share: abs(share - asked)):
            yield "actors.gpu_memory", share
    if learner.gradient_checkpointing == "off":
        yield "learner.gradient_checkpointing", "on"
    for path, value, least in (
        ("learner.micro_batch_tokens", learner.micro_batch_tokens, 1),
        ("actors.max_loras", actors.max_loras, 1),
        ("actors.games_in_flight", actors.games_in_flight, 1),
        ("actors.num", actors.num, 1),
        ("sampling.max_prompt_tokens", config.sampling.max_prompt_tokens, 64),
    ):
        left = 0 if value is None or value == "auto" else value
        while (left := left // 2) >= least:
            yield path, left
    yield "actors.enforce_eager", True
    if actors.engines_per_gpu in ("auto", 1):
        for span in (2, 4, 8):
            if span > actors.tensor_parallel:
                yield "actors.tensor_parallel", span


def changed(config: RunConfig, path: str, value: object) -> RunConfig:
    """Return the config with another value of a section's field."""
    section, _, name = path.partition(".")
    other = getattr(config, section).model_copy(update={name: value})
    return config.model_copy(update={section: other})
