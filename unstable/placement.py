"""Placement: which process runs on which device, in how much memory; "auto" is decided here.

A plan is a function of the config and the machine, both plain values, so that `unstable doctor` and
the tests can ask about machines that are not there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from unstable.config import ConfigError, RunConfig
from unstable.fitting import (
    MAX_GPU_MEMORY,
    MAX_LORAS,
    Device,
    DoesNotFitError,
    Mode,
    Room,
    Share,
    engine_alone,
    engine_and_learner,
    fit_batches,
    remedy,
)
from unstable.machine import GPU, Machine
from unstable.memory import (
    GB,
    EngineMemory,
    LearnerMemory,
    embedded_memory,
    learner_memory,
    vllm_memory,
)
from unstable.models.base import fast_dtype
from unstable.models.shape import ModelShape, read_shape

EMBEDDED_GAMES = 32
"""Games in flight on one embedded engine."""
VLLM_GAMES = 384
"""Most games in flight on one vLLM engine; beyond that its front end is the limit."""
PLANNED = 0.95
"""Share of a GPU's free memory that is planned with: estimates err, and allocators lose some."""
INSTALL_VLLM = "run: pip install 'unstable[gpu]'"

Engine = Literal["embedded", "vllm"]
Dtype = Literal["bfloat16", "float32"]
Ids = tuple[str, ...]


class Use(NamedTuple):
    """What each process of a kind takes of one device, in bytes by what they are for."""

    process: str
    device: str
    parts: dict[str, int]
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who runs where. A process has the ids of its GPUs; none: it runs on the processor."""

    engine: Engine
    dtype: Dtype
    mode: Mode
    share: Share
    actors: tuple[Ids, ...]
    learners: tuple[Ids, ...]  # of each rank
    gpu_memory: float  # share of a device's memory that an actor's vLLM engine may take
    games_in_flight: int  # of each actor
    max_loras: int
    max_cpu_loras: int
    gradient_checkpointing: bool
    mini_batch_tokens: int | None
    uses: tuple[Use, ...]
    notes: tuple[str, ...]  # what a person should know of

    def text(self) -> str:
        """The plan as a short table."""
        modes = {"sync": "play and learn in turn", "async": "play and learn at once"}
        sharing = {"off": "", "split": ", sharing memory", "sleep": ", one asleep meanwhile"}
        rows = [
            ("actors", f"{_places(self.actors)}, {self.engine} engine, {self.dtype}"),
            ("", f"{self.games_in_flight} games in flight on each"),
            ("learner", _places(self.learners)),
            ("loop", modes[self.mode] + sharing[self.share]),
        ]
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
    engine: Engine
    dtype: Dtype
    shape: ModelShape
    longest: int  # tokens of the longest prompt and answer
    max_loras: int
    max_cpu_loras: int

    def learner_memory(self, *, on_gpu: bool) -> LearnerMemory:
        learner = self.config.learner
        return learner_memory(
            self.shape,
            self.config.model.adapter,
            self.dtype,
            on_gpu=on_gpu,
            ranks=learner.num,
            sharded=learner.parallel == "fsdp",
            reference=learner.algorithm.kl_reward > 0 or learner.algorithm.kl_loss > 0,
        )

    def engine_memory(self, *, on_gpu: bool) -> EngineMemory:
        adapter, actors = self.config.model.adapter, self.config.actors
        if self.engine == "embedded":
            adapters = min(self.max_cpu_loras, self.config.loop.steps + 2)
            return embedded_memory(self.shape, adapter, self.dtype, adapters=adapters)
        games = VLLM_GAMES if actors.games_in_flight == "auto" else actors.games_in_flight
        return vllm_memory(
            self.shape,
            adapter,
            self.dtype,
            max_loras=self.max_loras,
            max_requests=games,
            max_length=self.longest,
            tensor_parallel=actors.tensor_parallel,
            graphs=on_gpu and not actors.enforce_eager,
        )


class _Placed(NamedTuple):
    """Processes on devices, and the room that they have there."""

    actors: tuple[Ids, ...]
    learners: tuple[Ids, ...]
    room: Room
    games: int
    engine: EngineMemory
    learner: LearnerMemory
    device: Device  # of the learner


def plan(config: RunConfig, machine: Machine) -> Plan:
    """Decide who runs where; raises `ConfigError` where it cannot be done.

    Where memory lacks, it names a number and a value of it that fits.
    """

    def fits(candidate: RunConfig) -> bool:
        try:
            _plan(candidate, machine)
        except DoesNotFitError:
            return False
        return True

    try:
        return _plan(config, machine)
    except DoesNotFitError as lack:
        raise ConfigError(f"{lack}; {remedy(config, fits)}") from None


def resolve(config: RunConfig, plan: Plan) -> RunConfig:
    """The config with every "auto" that a plan decides replaced by the decision."""
    data = config.model_dump()
    data["model"]["dtype"] = plan.dtype
    data["loop"]["mode"] = plan.mode
    data["actors"] |= {
        "num": len(plan.actors),
        "engine": plan.engine,
        "games_in_flight": plan.games_in_flight,
        "max_loras": plan.max_loras,
        "max_cpu_loras": plan.max_cpu_loras,
        "gpu_memory": plan.gpu_memory,
        "share_gpu": plan.share,
    }
    data["learner"] |= {
        "gradient_checkpointing": "on" if plan.gradient_checkpointing else "off",
        "mini_batch_tokens": plan.mini_batch_tokens,
    }
    return RunConfig.model_validate(data)


def _plan(config: RunConfig, machine: Machine) -> Plan:
    engine, notes = _engine(config, machine)
    case = _case(config, machine, engine)
    on_gpus = engine == "vllm" and bool(machine.usable_gpus)
    placed = _on_gpus(case) if on_gpus else _on_processor(case)
    room, longest = placed.room, case.longest
    batches = fit_batches(config, placed.learner, room.learner_bytes, longest, placed.device)
    if batches.checkpointing and config.learner.gradient_checkpointing == "auto":
        notes.append("learner.gradient_checkpointing is on: activations would not fit without")
    actors_on = _names(placed.actors)
    return Plan(
        engine=engine,
        dtype=case.dtype,
        mode=room.mode,
        share=room.share,
        actors=placed.actors,
        learners=placed.learners,
        gpu_memory=room.gpu_memory,
        games_in_flight=placed.games,
        max_loras=case.max_loras,
        max_cpu_loras=case.max_cpu_loras,
        gradient_checkpointing=batches.checkpointing,
        mini_batch_tokens=batches.limit_tokens,
        uses=(
            Use("actor", actors_on, placed.engine.parts(room.engine_bytes), room.engine_bytes),
            Use(
                "learner",
                _names(placed.learners),
                placed.learner.parts(batches.most_tokens, batches.checkpointing),
                room.learner_bytes,
            ),
        ),
        notes=tuple(notes),
    )


def _engine(config: RunConfig, machine: Machine) -> tuple[Engine, list[str]]:
    """The engine, and what a person should know of its choice."""
    notes = [f"GPUs are not used: {machine.cuda_problem}"] if machine.cuda_problem else []
    wanted = config.actors.engine
    if wanted == "vllm" and machine.cuda_problem:
        raise ConfigError(f"actors.engine = 'vllm': {machine.cuda_problem}")
    if wanted == "vllm" and not machine.has_vllm:
        raise ConfigError(
            f"actors.engine = 'vllm', but vLLM is not installed; {INSTALL_VLLM}, "
            "or set actors.engine to embedded"
        )
    if wanted == "auto" and machine.usable_gpus and not machine.has_vllm:
        notes.append(f"actors play on the processor: vLLM is not installed; {INSTALL_VLLM}")
    if wanted == "auto":
        return "vllm" if machine.usable_gpus and machine.has_vllm else "embedded", notes
    return wanted, notes


def _case(config: RunConfig, machine: Machine, engine: Engine) -> _Case:
    shape = read_shape(config.model)
    actors, gpus = config.actors, machine.usable_gpus
    others = sum(opponent.kind == "checkpoint" for opponent in config.opponents.fixed)
    versions = config.opponents.pool_size + 1 + others
    max_loras = min(MAX_LORAS, versions) if actors.max_loras == "auto" else actors.max_loras
    kept = max(max_loras, versions + 1)  # the one that is just being published
    asked = config.sampling.max_prompt_tokens + config.sampling.max_tokens
    return _Case(
        config=config,
        machine=machine,
        engine=engine,
        dtype=_dtype(config, gpus),
        shape=shape,
        longest=min(asked, shape.max_length),
        max_loras=max_loras,
        max_cpu_loras=kept if actors.max_cpu_loras == "auto" else actors.max_cpu_loras,
    )


def _dtype(config: RunConfig, gpus: Sequence[GPU]) -> Dtype:
    if config.model.dtype != "auto":
        return config.model.dtype
    fast = all(gpu.bfloat16 for gpu in gpus) if gpus else fast_dtype() == "bfloat16"
    return "bfloat16" if fast else "float32"


def _on_processor(case: _Case) -> _Placed:
    """Actors on the processor; the learner on the GPUs, if there are any."""
    config, machine, gpus = case.config, case.machine, case.machine.usable_gpus
    ranks, half = config.learner.num, machine.memory_bytes // 2
    if 0 < len(gpus) < ranks:
        raise _too_few(f"learner.num = {ranks}", ranks, gpus, f"learner.num to {len(gpus)}")
    # Measured on two cores (docs/benchmarks.md): at once is faster, if each has a core of its own.
    sync = config.loop.mode == "sync" or (config.loop.mode == "auto" and machine.cores == 1)
    asked = config.actors.games_in_flight
    games = EMBEDDED_GAMES if asked == "auto" else asked
    engine = case.engine_memory(on_gpu=False)
    actor_bytes = engine.total(games * case.longest // 2)  # few prompts are as long as allowed
    by_cores = machine.cores if sync else max(1, machine.cores // 2)
    by_memory = max(1, min(half, machine.free_bytes) // actor_bytes)
    most = 1 if case.engine == "vllm" else min(by_cores, by_memory)
    # Half for the learner whatever is free just now: a run must not depend on that.
    processor = Device("the processor", machine.memory_bytes, half // ranks, on_gpu=False)
    device = _smallest(gpus[:ranks]) if gpus else processor
    # On a processor vLLM takes this as a share of its memory.
    share = min(MAX_GPU_MEMORY, math.ceil(100 * actor_bytes / machine.memory_bytes) / 100)
    return _Placed(
        actors=((),) * (most if config.actors.num == "auto" else config.actors.num),
        learners=tuple((gpu.id,) for gpu in gpus[:ranks]) or ((),) * ranks,
        room=Room(
            mode="sync" if sync else "async",
            share="off",
            gpu_memory=share if config.actors.gpu_memory == "auto" else config.actors.gpu_memory,
            engine_bytes=actor_bytes,
            learner_bytes=device.free_bytes,
        ),
        games=games,
        engine=engine,
        learner=case.learner_memory(on_gpu=device.on_gpu),
        device=device,
    )


def _on_gpus(case: _Case) -> _Placed:
    """vLLM's actors and the learner on cards of their own, or on the same ones if there are few."""
    config, gpus = case.config, case.machine.usable_gpus
    actors, learners, shared = _cards(config, gpus)
    engine, learner = case.engine_memory(on_gpu=True), case.learner_memory(on_gpu=True)
    used = [card for cards in actors for card in cards]
    device = _smallest(learners)
    if shared:
        both = _smallest([*used, *learners])
        room = engine_and_learner(config, engine, learner, both, case.longest)
    else:
        room = engine_alone(
            config, engine, _smallest(used), case.longest, learner_bytes=device.free_bytes
        )
    games = engine.tokens(room.engine_bytes) // case.longest
    asked = config.actors.games_in_flight
    return _Placed(
        actors=tuple(tuple(card.id for card in cards) for cards in actors),
        learners=tuple((card.id,) for card in learners),
        room=room,
        games=min(VLLM_GAMES, games) if asked == "auto" else asked,
        engine=engine,
        learner=learner,
        device=device,
    )


def _cards(
    config: RunConfig, gpus: Sequence[GPU]
) -> tuple[list[Sequence[GPU]], Sequence[GPU], bool]:
    """Cards of each actor, of each learner rank, and whether they are the same ones."""
    actors, ranks = config.actors, config.learner.num
    span = actors.tensor_parallel
    least = span * (1 if actors.num == "auto" else actors.num)
    shared = actors.share_gpu in ("split", "sleep") or (
        actors.share_gpu == "auto" and least + ranks > len(gpus) >= max(least, ranks)
    )
    for_actors = gpus if shared else gpus[: max(0, len(gpus) - ranks)]
    num = len(for_actors) // span if actors.num == "auto" else actors.num
    if ranks > len(gpus):
        raise _too_few(f"learner.num = {ranks}", ranks, gpus, f"learner.num to {len(gpus)}")
    if num < 1 or num * span > len(for_actors):
        wanted = f"actors.num = {actors.num} with actors.tensor_parallel = {span}"
        if len(for_actors) >= span:
            change = f"actors.num to {len(for_actors) // span}"
        elif len(gpus) >= span:
            change = "actors.share_gpu to auto"
        else:
            change = f"actors.tensor_parallel to {len(gpus)}"
        raise _too_few(f"{wanted} beside learner.num = {ranks}", max(1, num) * span, gpus, change)
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


def _names(processes: Sequence[Ids]) -> str:
    """Where processes run, in words."""
    if not any(processes):
        return "the processor"
    return f"GPU {', '.join('+'.join(ids) for ids in processes)}"


def _places(processes: Sequence[Ids]) -> str:
    return f"{len(processes)} on {_names(processes)}"
