"""Placement: which process runs on which device, with how much memory; resolves "auto".

A plan is a function of the config and the machine, both plain values, so that `unstable doctor` and
the tests can plan for machines that are not there.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from unstable.config import ConfigError, RunConfig
from unstable.models.shape import read_shape
from unstable.planning.case import Case, Placed, case_of, versions_kept
from unstable.planning.fit import (
    Batches,
    DoesNotFitError,
    Mode,
    Share,
    changed,
    fit_batches,
    smaller,
)
from unstable.planning.machine import Machine, Placement, together
from unstable.planning.memory import DTYPE_BYTES, FP32, GB
from unstable.planning.needs import Dtype, EngineNeeds, choose_dtype, choose_engine
from unstable.planning.placing import on_gpus, on_processor

NARROW = 128
"""Hidden size up to which the number of the learner's threads depends on `loop.mode` alone."""
_SENT = 3
"""Maximum number of versions being sent to actors at a time."""

Engines = Mapping[str, EngineNeeds]
"""Needs of each engine, by its name."""


class Use(NamedTuple):
    """Memory that each process of a kind takes of one device, in bytes by purpose."""

    process: str
    device: str
    parts: dict[str, int]
    limit_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Places of all processes, and the amount of their concurrent work."""

    engine: str
    dtype: Dtype
    mode: Mode
    share: Share
    actors: tuple[Placement, ...]
    learners: tuple[Placement, ...]  # per rank; empty without a learner
    learner_threads: int  # CPU threads of all ranks together
    gpu_memory: float  # vLLM engine's share of a device's memory
    games_in_flight: int  # per actor
    engines_per_gpu: int
    max_loras: int
    max_cpu_loras: int
    pool_size: int  # number of past opponents; may be reduced for whole models
    gradient_checkpointing: bool
    micro_batch_tokens: int | None
    uses: tuple[Use, ...]
    notes: tuple[str, ...]  # shown to the user
    grows: bool = False  # True if nodes that join later get actors

    def text(self) -> str:
        """Return the plan as a short table."""
        modes = {"sync": "play and learn alternating", "async": "play and learn at once"}
        sharing = {"off": "", "split": ", sharing memory", "sleep": ", the other asleep"}
        several = len({place.node for place in (*self.actors, *self.learners)}) > 1
        rows = [
            ("actors", f"{_places(self.actors, several)}, {self.engine} engine, {self.dtype}"),
            ("", f"{self.games_in_flight} games in flight per actor"),
        ]
        if self.learners:
            rows.append(("learner", _places(self.learners, several)))
            rows.append(("loop", modes[self.mode] + sharing[self.share]))
        for use in self.uses:
            parts = ", ".join(f"{name} {size / GB:.2f}" for name, size in use.parts.items())
            used, limit = sum(use.parts.values()) / GB, use.limit_bytes / GB
            rows.append(("memory", f"{use.process}, {use.device}: {used:.1f} of {limit:.1f} GB"))
            rows.append(("", f"({parts})"))
        rows += [("note", note) for note in self.notes]
        return "\n".join(f"{name:<9}{value}" for name, value in rows)


def plan(
    config: RunConfig,
    machines: Sequence[Machine],
    engines: Engines,
    *,
    learner: bool = True,
    request_tokens: float | None = None,
) -> Plan:
    """Decide which process runs where; raises `ConfigError` if nothing fits.

    The last of several machines is the driver's, which also runs the learner if it fits there. If
    memory is lacking, the error names a number and a value of it that fits. Without a learner, such
    as in the evaluation of a finished run, actors get all resources. `request_tokens` is the mean
    length of prompt and answer, if known.
    """
    machine = together(machines)
    lacks = []
    for smaller_pool in _pools(config):
        try:
            return _plan(smaller_pool, machine, engines, learner, request_tokens)
        except DoesNotFitError as lack:
            lacks.append(lack)
    raise ConfigError(f"{lacks[-1]}; {_remedy(smaller_pool, machine, engines, learner)}") from None


def _pools(config: RunConfig) -> Iterator[RunConfig]:
    """Yield the config and, if versions are whole models, variants with fewer past opponents."""
    yield config
    size = config.opponents.pool_size
    while config.model.trains_all and size > 1:
        size //= 2
        yield changed(config, "opponents.pool_size", size)


def _whole_versions(config: RunConfig, machine: Machine, needs: EngineNeeds) -> Iterator[str]:
    """Yield notes for the user on versions that are whole models."""
    if not config.model.trains_all:
        return
    size = FP32 * read_shape(config.model).parameters
    kept = config.opponents.pool_size
    yield f"all weights are trained: {size / GB:.2g} GB per version, opponents.pool_size = {kept}"
    if needs.one_model_at_a_time:
        files = DTYPE_BYTES[choose_dtype(config, machine)] * size // FP32 * versions_kept(config)
        yield (
            "the engine computes one version at a time, so games against past versions alternate; "
            f"it keeps versions as temporary files (TMPDIR), {files / GB:.2g} GB"
        )
    if machine.shared_bytes is not None and _SENT * size > machine.shared_bytes:
        yield (
            f"versions exceed /dev/shm, which has {machine.shared_bytes / GB:.2g} GB, so "
            f"they are sent by disk; raise it to {_SENT * size / GB:.2g} GB (Docker: --shm-size)"
        )


def _remedy(config: RunConfig, machine: Machine, engines: Engines, learner: bool) -> str:
    """Return the first change of a single number that makes the config fit, as a remedy."""
    for path, value in smaller(config):
        with contextlib.suppress(DoesNotFitError, ConfigError):
            _plan(changed(config, path, value), machine, engines, learner)
            return f"set {path} to {str(value).lower()}"
    return "use a smaller model or a machine with more memory"


def _plan(
    config: RunConfig,
    machine: Machine,
    engines: Engines,
    learner: bool,
    request_tokens: float | None = None,
) -> Plan:
    """Return the plan of the first number of learner ranks that fits."""
    engine, notes = choose_engine(config, machine, engines)
    notes += _whole_versions(config, machine, engines[engine])
    lacks = []
    for ranks in _ranks(config, machine, engines[engine]) if learner else [0]:
        try:
            case = case_of(config, machine, engines[engine], ranks, request_tokens)
            return _planned(case, engine, list(notes))
        except DoesNotFitError as lack:
            lacks.append(lack)
    raise lacks[0]


def _ranks(config: RunConfig, machine: Machine, engine: EngineNeeds) -> Sequence[int]:
    """List numbers of learner ranks, the best first: half of the GPUs, or close to it.

    Only numbers that leave actors enough GPUs are listed.
    """
    actors, cards = config.actors, len(machine.usable_gpus)
    if config.learner.num != "auto":
        return [config.learner.num]
    if not engine.uses_gpus or not cards or actors.share_gpu in ("split", "sleep"):
        return [1]
    per_card = 1 if actors.engines_per_gpu == "auto" else actors.engines_per_gpu
    engines = 1 if actors.num == "auto" else -(-actors.num // per_card)
    taken = actors.tensor_parallel * engines
    numbers = range(1, max(1, min(cards - taken, config.learner.batch_size)) + 1)
    return sorted(numbers, key=lambda ranks: abs(ranks - cards / 2))


def _planned(case: Case, engine: str, notes: list[str]) -> Plan:
    """Return the plan of a case; raises `DoesNotFitError`."""
    gpus = case.engine.uses_gpus and bool(case.machine.usable_gpus)
    placed = on_gpus(case) if gpus else on_processor(case)
    budget = placed.budget
    _check_sharing(case, budget.share, placed.engines_per_gpu)
    batches, learner_uses = _learner_uses(case, placed)
    if batches.checkpointing and case.config.learner.gradient_checkpointing == "auto":
        notes.append("learner.gradient_checkpointing is on: activations do not fit without it")
    parts = placed.engine.parts(placed.cached_tokens)
    return Plan(
        engine=engine,
        dtype=case.dtype,
        mode=budget.mode,
        share=budget.share,
        actors=placed.actors,
        learners=placed.learners,
        learner_threads=_learner_threads(case, placed),
        gpu_memory=budget.gpu_memory,
        games_in_flight=placed.games,
        max_loras=placed.max_loras,
        engines_per_gpu=placed.engines_per_gpu,
        max_cpu_loras=case.max_cpu_loras,
        pool_size=case.config.opponents.pool_size,
        gradient_checkpointing=batches.checkpointing,
        micro_batch_tokens=batches.limit_tokens,
        uses=(Use("actor", _names(placed.actors), parts, budget.engine_bytes), *learner_uses),
        notes=tuple(notes),
        # A bitwise reproducible run keeps its number of actors.
        grows=case.config.actors.num == "auto" and (gpus or budget.mode == "async"),
    )


def _check_sharing(case: Case, share: Share, per_card: int) -> None:
    """Raise `ConfigError` if two processes would be on a GPU that takes one."""
    alone = [gpu.id for gpu in case.machine.usable_gpus if gpu.mode == "exclusive"]
    if (share != "off" or per_card > 1) and alone:
        raise ConfigError(
            f"GPU {', '.join(alone)}: compute mode is exclusive, so processes "
            "cannot share it; run: nvidia-smi -c DEFAULT"
        )


def _learner_threads(case: Case, placed: Placed) -> int:
    """Return all of the node's cores if play waits meanwhile, else the cores that actors leave.

    A narrow model has two or one, so that its results do not depend on the number of cores.
    """
    if case.shape.hidden <= NARROW:
        return max(2 if placed.budget.mode == "sync" else 1, len(placed.learners))
    machine, nodes = case.machine, {learner.node for learner in placed.learners}
    cores = min((each.cores for each in machine.each if each.node in nodes), default=machine.cores)
    if placed.budget.mode == "sync":
        return cores
    return max(1, cores - sum(actor.node in nodes for actor in placed.actors))


def _learner_uses(case: Case, placed: Placed) -> tuple[Batches, tuple[Use, ...]]:
    """Return the learner's micro-batches, and the memory that it takes of its device."""
    config, device, limit_bytes = case.config, placed.learner_on, placed.budget.learner_bytes
    if device is None:
        asked = config.learner
        checkpointing = asked.gradient_checkpointing == "on"
        return Batches(checkpointing, asked.micro_batch_tokens, 0), ()
    memory = case.learner_memory(on_gpu=device.on_gpu)
    batches = fit_batches(config, memory, limit_bytes, case.longest, device)
    parts = memory.parts(batches.most_tokens, batches.checkpointing)
    return batches, (Use("learner", _names(placed.learners), parts, limit_bytes),)


def _names(placements: Sequence[Placement]) -> str:
    """Name the places of processes; on several nodes, with the number at each."""
    at_node = Counter(placement.node for placement in placements)
    if len(at_node) > 1:
        return ", ".join(f"{count} at {node}" for node, count in at_node.items())
    if not any(placement.gpus for placement in placements):
        return "the CPU"
    return f"GPU {', '.join('+'.join(placement.gpus) for placement in placements)}"


def _places(placements: Sequence[Placement], several: bool) -> str:
    """Say how many processes run where; with the node if there are `several`."""
    nodes = {placement.node for placement in placements}
    if len(nodes) > 1:
        return f"{len(placements)}: {_names(placements)}"
    at = f" at {placements[0].node}" if several else ""
    return f"{len(placements)}{at} on {_names(placements)}"
