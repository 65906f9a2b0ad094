"""Placing processes where actors play on the processor."""

from collections.abc import Sequence
from typing import NamedTuple

from unstable.planning.case import Case, Placed, smallest, too_few
from unstable.planning.fit import MAX_GPU_MEMORY, Budget, Device, check_engine_fits
from unstable.planning.machine import Machine, Placement
from unstable.planning.memory import EngineMemory

EMBEDDED_GAMES = 32
"""Games in flight on one embedded engine."""
SMALL = 20_000_000
"""Parameters below which launching a GPU's kernels takes longer than a processor's arithmetic."""


def on_processor(case: Case) -> Placed:
    """Actors on the processor; the learner on the GPUs, if there are any and the model is large."""
    config, machine = case.config, case.machine
    small = case.shape.parameters < SMALL and case.dtype == "float32"
    gpus = () if small else machine.usable_gpus
    ranks, asked = case.ranks, config.actors
    if 0 < len(gpus) < ranks:
        raise too_few(f"learner.num = {ranks}", ranks, gpus, f"learner.num to {len(gpus)}")
    # Measured on two cores (docs/benchmarks.md): at once is faster, if each has a core of its own.
    sync = config.loop.mode == "sync" or (config.loop.mode == "auto" and machine.cores == 1)
    engine = case.engine_memory(on_gpu=False)
    wanted = EMBEDDED_GAMES if asked.games_in_flight == "auto" else asked.games_in_flight
    learners = tuple(case.place(gpu) for gpu in gpus[:ranks]) or (case.place(),) * ranks
    learner_at = learners[0] if learners else None
    needs = _Needs(engine, tokens_of(case, wanted), case.engine.most_on_processor)
    rooms = [_room(node, needs, learner_at, sync=sync) for node in machine.each]
    num = sum(room.actors for room in rooms) if asked.num == "auto" else asked.num
    counts = _shared_out(num, [room.actors for room in rooms])
    limit = min(room.bytes // count for room, count in zip(rooms, counts, strict=True) if count)
    fitting = 2 * engine.tokens(limit) // case.longest
    games = max(1, min(wanted, fitting)) if asked.games_in_flight == "auto" else wanted
    processor = Device("the processor", machine.memory_bytes, limit, on_gpu=False)
    check_engine_fits(engine, limit, processor, tokens_of(case, games))
    learner_on = None
    if ranks:
        own = processor._replace(free_bytes=machine.each[-1].memory_bytes // 2 // ranks)
        learner_on = smallest(gpus[:ranks]) if gpus else own
    return Placed(
        actors=tuple(
            Placement(node.node)
            for node, count in zip(machine.each, counts, strict=True)
            for _ in range(count)
        ),
        learners=learners,
        budget=Budget(
            mode="sync" if sync else "async",
            share="off",
            gpu_memory=MAX_GPU_MEMORY if asked.gpu_memory == "auto" else asked.gpu_memory,
            engine_bytes=limit,
            learner_bytes=learner_on.free_bytes if learner_on else 0,
        ),
        games=games,
        max_loras=case.max_loras,
        engines_per_gpu=1 if asked.engines_per_gpu == "auto" else asked.engines_per_gpu,
        engine=engine,
        cached_tokens=tokens_of(case, games),
        learner_on=learner_on,
    )


class _Needs(NamedTuple):
    """Needs of an actor on a processor."""

    engine: EngineMemory
    tokens: int
    most: int | None  # of them that one processor is good for


class _Room(NamedTuple):
    """Number of actors that a node is good for, and the memory that they share."""

    actors: int
    bytes: int


def _room(node: Machine, needs: _Needs, learner: Placement | None, *, sync: bool) -> _Room:
    """Return the room of a node; a learner that computes there has half of cores and memory.

    Half of all memory, whatever is free just now: a run must not depend on that.
    """
    learns = learner is not None and learner.node == node.node
    half = node.memory_bytes // 2 if learner is not None and learns and not learner.gpus else 0
    for_actors = node.memory_bytes - half
    by_cores = node.cores if sync or not learns else node.cores // 2
    by_memory = min(for_actors, node.free_bytes) // needs.engine.total(needs.tokens)
    return _Room(needs.most or max(1, min(by_cores, by_memory)), for_actors)


def _shared_out(num: int, rooms: Sequence[int]) -> list[int]:
    """Share actors out: each next one where the fewest are, by what a node is good for.

    >>> _shared_out(4, [2, 1])
    [3, 1]
    """
    counts = [0] * len(rooms)
    for _ in range(num):
        shares = [(count + 1) / room for count, room in zip(counts, rooms, strict=True)]
        counts[shares.index(min(shares))] += 1
    return counts


def tokens_of(case: Case, games: int) -> int:
    """Count tokens that games cache at once; few prompts are as long as allowed, but one may be."""
    return max(case.longest, games * case.longest // 2)
