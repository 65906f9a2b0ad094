"""Placement: which process runs on which device, in how much memory; "auto" is decided here.

A plan is a function of the config and the machine, both plain values, so that `unstable doctor` and
the tests can ask about machines that are not there.
"""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from unstable.config import ConfigError, RunConfig
from unstable.models.shape import ModelShape, read_shape
from unstable.planning.fit import (
    MAX_GPU_MEMORY,
    MAX_LORAS,
    Batches,
    Budget,
    Device,
    DoesNotFitError,
    Mode,
    Share,
    changed,
    check_engine_fits,
    engine_alone,
    engine_and_learner,
    fit_batches,
    smaller,
)
from unstable.planning.machine import GPU, Machine, Placement
from unstable.planning.memory import GB, EngineMemory, LearnerMemory, learner_memory
from unstable.planning.needs import (
    Dtype,
    EngineNeeds,
    EngineSetup,
    choose_dtype,
    choose_engine,
)

EMBEDDED_GAMES = 32
"""Games in flight on one embedded engine."""
VLLM_GAMES = 384
"""Most games in flight on one vLLM engine; beyond that its front end is the limit."""
SMALL = 20_000_000
"""Parameters below which launching a GPU's kernels takes longer than a processor's arithmetic."""
PLANNED = 0.95
"""Share of a GPU's free memory that is planned with: estimates err, and allocators lose some."""

Engines = Mapping[str, EngineNeeds]
"""What each engine needs, by its name."""


class Use(NamedTuple):
    """What each process of a kind takes of one device, in bytes by what they are for."""

    process: str
    device: str
    parts: dict[str, int]
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who runs where, and how much each process does at once."""

    engine: str
    dtype: Dtype
    mode: Mode
    share: Share
    actors: tuple[Placement, ...]
    learners: tuple[Placement, ...]  # of each rank; none where nothing is learned
    learner_threads: int  # of the processor, for all ranks together
    gpu_memory: float  # share of a device's memory that an actor's vLLM engine may take
    games_in_flight: int  # of each actor
    max_loras: int
    max_cpu_loras: int
    gradient_checkpointing: bool
    micro_batch_tokens: int | None
    uses: tuple[Use, ...]
    notes: tuple[str, ...]  # what a person should know of

    def text(self) -> str:
        """The plan as a short table."""
        modes = {"sync": "play and learn in turn", "async": "play and learn at once"}
        sharing = {"off": "", "split": ", sharing memory", "sleep": ", one asleep meanwhile"}
        rows = [
            ("actors", f"{_places(self.actors)}, {self.engine} engine, {self.dtype}"),
            ("", f"{self.games_in_flight} games in flight on each"),
        ]
        if self.learners:
            rows.append(("learner", _places(self.learners)))
            rows.append(("loop", modes[self.mode] + sharing[self.share]))
        for use in self.uses:
            parts = ", ".join(f"{name} {size / GB:.2f}" for name, size in use.parts.items())
            used, limit = sum(use.parts.values()) / GB, use.limit_bytes / GB
            rows.append(("memory", f"{use.process}, {use.device}: {used:.1f} of {limit:.1f} GB"))
            rows.append(("", f"({parts})"))
        rows += [("note", note) for note in self.notes]
        return "\n".join(f"{name:<9}{value}" for name, value in rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A config on a machine, with what follows at once."""

    config: RunConfig
    machine: Machine
    engine: EngineNeeds
    dtype: Dtype
    shape: ModelShape
    ranks: int  # of the learner; 0: there is none
    longest: int  # tokens of the longest prompt and answer
    max_loras: int
    max_cpu_loras: int

    def place(self, *cards: GPU) -> Placement:
        return Placement(self.machine.node, tuple(card.id for card in cards))

    def learner_memory(self, *, on_gpu: bool) -> LearnerMemory:
        learner = self.config.learner
        tokens = learner.batch_size * self.config.sampling.max_tokens
        return learner_memory(
            self.shape,
            self.config.model.adapter,
            self.dtype,
            on_gpu=on_gpu,
            ranks=self.ranks,
            sharded=learner.parallel == "fsdp",
            reference=learner.algorithm.uses_reference,
            average=learner.ema is not None,
            reference_tokens=tokens * learner.algorithm.uses_exact_kl,
            quantize=self.config.model.quantize,
        )

    def engine_memory(self, *, on_gpu: bool) -> EngineMemory:
        games = self.config.actors.games_in_flight
        setup = EngineSetup(
            config=self.config,
            shape=self.shape,
            dtype=self.dtype,
            max_length=self.longest,
            max_requests=VLLM_GAMES if games == "auto" else games,
            max_loras=self.max_loras,
            max_cpu_loras=self.max_cpu_loras,
            on_gpu=on_gpu,
        )
        return self.engine.memory(setup)


class _Placed(NamedTuple):
    """Processes on devices, and the room that they have there."""

    actors: tuple[Placement, ...]
    learners: tuple[Placement, ...]
    budget: Budget
    games: int
    engine: EngineMemory
    cached_tokens: int  # that the engine has room for
    learner_on: Device | None


def plan(
    config: RunConfig, machines: Sequence[Machine], engines: Engines, *, learner: bool = True
) -> Plan:
    """Decide who runs where; raises `ConfigError` where it cannot be done.

    All that can be decided is where on one machine, so `machines` holds one. Where memory lacks, it
    names a number and a value of it that fits. Without a learner, as when a finished run is
    evaluated, the whole machine is the actors'.
    """
    (machine,) = machines
    try:
        return _plan(config, machine, engines, learner)
    except DoesNotFitError as lack:
        raise ConfigError(f"{lack}; {_remedy(config, machine, engines, learner)}") from None


def _remedy(config: RunConfig, machine: Machine, engines: Engines, learner: bool) -> str:
    """The first number whose change alone makes the config fit."""
    for path, value in smaller(config):
        with contextlib.suppress(DoesNotFitError, ConfigError):
            _plan(changed(config, path, value), machine, engines, learner)
            return f"set {path} to {str(value).lower()}"
    return "use a smaller model, or a machine with more memory"


def _plan(config: RunConfig, machine: Machine, engines: Engines, learner: bool) -> Plan:
    engine, notes = choose_engine(config, machine, engines)
    case = _case(config, machine, engines[engine], config.learner.num if learner else 0)
    on_gpus = case.engine.uses_gpus and bool(machine.usable_gpus)
    placed = _on_gpus(case) if on_gpus else _on_processor(case)
    budget = placed.budget
    _check_sharing(case, budget.share)
    batches, learner_uses = _learner_uses(case, placed)
    if batches.checkpointing and config.learner.gradient_checkpointing == "auto":
        notes.append("learner.gradient_checkpointing is on: activations would not fit without")
    parts = placed.engine.parts(placed.cached_tokens)
    return Plan(
        engine=engine,
        dtype=case.dtype,
        mode=budget.mode,
        share=budget.share,
        actors=placed.actors,
        learners=placed.learners,
        learner_threads=_learner_threads(machine, placed),
        gpu_memory=budget.gpu_memory,
        games_in_flight=placed.games,
        max_loras=case.max_loras,
        max_cpu_loras=case.max_cpu_loras,
        gradient_checkpointing=batches.checkpointing,
        micro_batch_tokens=batches.limit_tokens,
        uses=(Use("actor", _names(placed.actors), parts, budget.engine_bytes), *learner_uses),
        notes=tuple(notes),
    )


def _check_sharing(case: _Case, share: Share) -> None:
    """Raise `ConfigError` where two processes would be on a card that takes one."""
    alone = [gpu.id for gpu in case.machine.usable_gpus if gpu.mode == "exclusive"]
    if share != "off" and alone:
        raise ConfigError(
            f"GPU {', '.join(alone)}: the compute mode is exclusive, so that actor and learner "
            "cannot share it; run: nvidia-smi -c DEFAULT"
        )


def _learner_threads(machine: Machine, placed: _Placed) -> int:
    """All cores where play waits meanwhile, else those that actors leave over."""
    if placed.budget.mode == "sync":
        return machine.cores
    return max(1, machine.cores - len(placed.actors))


def _learner_uses(case: _Case, placed: _Placed) -> tuple[Batches, tuple[Use, ...]]:
    """The learner's micro-batches, and what it takes of its device."""
    config, device, limit_bytes = case.config, placed.learner_on, placed.budget.learner_bytes
    if device is None:
        asked = config.learner
        checkpointing = asked.gradient_checkpointing == "on"
        return Batches(checkpointing, asked.micro_batch_tokens, 0), ()
    memory = case.learner_memory(on_gpu=device.on_gpu)
    batches = fit_batches(config, memory, limit_bytes, case.longest, device)
    parts = memory.parts(batches.most_tokens, batches.checkpointing)
    return batches, (Use("learner", _names(placed.learners), parts, limit_bytes),)


def _case(config: RunConfig, machine: Machine, engine: EngineNeeds, ranks: int) -> _Case:
    shape = read_shape(config.model)
    actors = config.actors
    others = sum(each.adapter_folder is not None for each in config.opponents.fixed)
    versions = config.opponents.pool_size + 1 + others + len(config.openings.versions)
    most = versions if actors.max_cpu_loras == "auto" else actors.max_cpu_loras
    mixed = min(MAX_LORAS, versions, most) if actors.max_loras == "auto" else actors.max_loras
    kept = max(mixed, versions + 1)  # the one that is just being published
    asked = config.sampling.max_prompt_tokens + config.sampling.max_tokens
    return _Case(
        config=config,
        machine=machine,
        engine=engine,
        dtype=choose_dtype(config, machine),
        shape=shape,
        ranks=ranks,
        longest=min(asked, shape.max_length),
        max_loras=mixed,
        max_cpu_loras=kept if actors.max_cpu_loras == "auto" else actors.max_cpu_loras,
    )


def _on_processor(case: _Case) -> _Placed:
    """Actors on the processor; the learner on the GPUs, if there are any and the model is large."""
    config, machine = case.config, case.machine
    small = case.shape.parameters < SMALL and case.dtype == "float32"
    gpus = () if small else machine.usable_gpus
    ranks, asked = case.ranks, config.actors
    if 0 < len(gpus) < ranks:
        raise _too_few(f"learner.num = {ranks}", ranks, gpus, f"learner.num to {len(gpus)}")
    # Measured on two cores (docs/benchmarks.md): at once is faster, if each has a core of its own.
    sync = config.loop.mode == "sync" or (config.loop.mode == "auto" and machine.cores == 1)
    # Half for the learner whatever is free just now: a run must not depend on that.
    half = machine.memory_bytes // 2 if ranks and not gpus else 0
    for_actors = machine.memory_bytes - half
    engine = case.engine_memory(on_gpu=False)
    wanted = EMBEDDED_GAMES if asked.games_in_flight == "auto" else asked.games_in_flight
    by_cores = machine.cores if sync or not ranks else machine.cores // 2
    by_memory = min(for_actors, machine.free_bytes) // engine.total(_tokens(case, wanted))
    most = case.engine.most_on_processor or max(1, min(by_cores, by_memory))
    num = most if asked.num == "auto" else asked.num
    limit = for_actors // num
    fitting = 2 * engine.tokens(limit) // case.longest
    games = max(1, min(wanted, fitting)) if asked.games_in_flight == "auto" else wanted
    processor = Device("the processor", machine.memory_bytes, limit, on_gpu=False)
    check_engine_fits(engine, limit, processor, _tokens(case, games))
    learner_on = None
    if ranks:
        own = processor._replace(free_bytes=half // ranks)
        learner_on = _smallest(gpus[:ranks]) if gpus else own
    return _Placed(
        actors=(case.place(),) * num,
        learners=tuple(case.place(gpu) for gpu in gpus[:ranks]) or (case.place(),) * ranks,
        budget=Budget(
            mode="sync" if sync else "async",
            share="off",
            gpu_memory=MAX_GPU_MEMORY if asked.gpu_memory == "auto" else asked.gpu_memory,
            engine_bytes=limit,
            learner_bytes=learner_on.free_bytes if learner_on else 0,
        ),
        games=games,
        engine=engine,
        cached_tokens=_tokens(case, games),
        learner_on=learner_on,
    )


def _tokens(case: _Case, games: int) -> int:
    """That games cache at once; few prompts are as long as allowed, but one may be."""
    return max(case.longest, games * case.longest // 2)


def _on_gpus(case: _Case) -> _Placed:
    """vLLM's actors and the learner on cards of their own, or on the same ones if there are few."""
    config, gpus = case.config, case.machine.usable_gpus
    actors, learners, shared = _cards(config, gpus, case.ranks)
    engine = case.engine_memory(on_gpu=True)
    used = [card for cards in actors for card in cards]
    learner_on = _smallest(learners) if learners else None
    if shared:
        both, learner = _smallest([*used, *learners]), case.learner_memory(on_gpu=True)
        budget = engine_and_learner(config, engine, learner, both, case.longest)
    else:
        left = learner_on.free_bytes if learner_on else 0
        budget = engine_alone(config, engine, _smallest(used), case.longest, learner_bytes=left)
    cached_tokens = engine.tokens(budget.engine_bytes)
    asked = config.actors.games_in_flight
    return _Placed(
        actors=tuple(case.place(*cards) for cards in actors),
        learners=tuple(case.place(card) for card in learners),
        budget=budget,
        games=min(VLLM_GAMES, cached_tokens // case.longest) if asked == "auto" else asked,
        engine=engine,
        cached_tokens=cached_tokens,
        learner_on=learner_on,
    )


def _cards(
    config: RunConfig, gpus: Sequence[GPU], ranks: int
) -> tuple[list[Sequence[GPU]], Sequence[GPU], bool]:
    """Cards of each actor, of each learner rank, and whether they are the same ones."""
    actors = config.actors
    span = actors.tensor_parallel
    least = span * (1 if actors.num == "auto" else actors.num)
    few = least + ranks > len(gpus) >= max(least, ranks)
    together = actors.share_gpu in ("split", "sleep") or (actors.share_gpu == "auto" and few)
    shared = ranks > 0 and together
    for_actors = gpus if shared else gpus[: max(0, len(gpus) - ranks)]
    num = len(for_actors) // span if actors.num == "auto" else actors.num
    if ranks > len(gpus):
        raise _too_few(f"learner.num = {ranks}", ranks, gpus, f"learner.num to {len(gpus)}")
    if num < 1 or num * span > len(for_actors):
        wanted = f"actors.num = {actors.num} with actors.tensor_parallel = {span}"
        beside = f" beside learner.num = {ranks}" if ranks else ""
        if len(for_actors) >= span:
            change = f"actors.num to {len(for_actors) // span}"
        elif len(gpus) >= span:
            change = "actors.share_gpu to auto"
        else:
            change = f"actors.tensor_parallel to {len(gpus)}"
        raise _too_few(wanted + beside, max(1, num) * span, gpus, change)
    return (
        [for_actors[i * span : (i + 1) * span] for i in range(num)],
        gpus[:ranks] if shared else gpus[len(gpus) - ranks :],
        shared,
    )


def _too_few(wanted: str, needed: int, gpus: Sequence[GPU], change: str) -> ConfigError:
    return ConfigError(f"{wanted} needs {needed} GPUs, but there are {len(gpus)}; set {change}")


def _smallest(gpus: Sequence[GPU]) -> Device:
    """What can be had of each of the cards."""
    return Device(
        f"GPU {', '.join(dict.fromkeys(gpu.id for gpu in gpus))}",
        min(gpu.total_bytes for gpu in gpus),
        int(PLANNED * min(gpu.free_bytes for gpu in gpus)),
        on_gpu=True,
    )


def _names(placements: Sequence[Placement]) -> str:
    """Where processes run, in words."""
    if not any(placement.gpus for placement in placements):
        return "the processor"
    return f"GPU {', '.join('+'.join(placement.gpus) for placement in placements)}"


def _places(placements: Sequence[Placement]) -> str:
    return f"{len(placements)} on {_names(placements)}"
