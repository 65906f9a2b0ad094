"""Placement of actors on GPUs or on the CPU, and of the learner."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace

from unstable.config import RunConfig
from unstable.planning.case import VLLM_GAMES, Case, Placed, smallest, too_few, versions_at_once
from unstable.planning.fit import (
    MAX_GPU_MEMORY,
    Budget,
    Device,
    DoesNotFitError,
    SharedCard,
    check_engine_fits,
    engine_alone,
)
from unstable.planning.machine import GPU, Machine, Placement

GAME_TURNS = 8
"""Trained turns per game of self-play; 7.6 were measured in TicTacToe."""
_SMALL_ENGINE = 500_000_000
_MOST_ENGINES = 4
_ENGINE_ROOM = 20_000_000_000
_ENGINE_CORES = 4
_ENGINE_GAMES = 48
"""Limits for several engines on a GPU: the model's parameters, the number of engines, and for each
engine the GPU's bytes, the cores, and the games that may be in flight. An estimate: most of the
16.6 ms of a step of SmolLM2 on an H200 were CPU time."""


def on_gpus(case: Case) -> Placed:
    """Place vLLM's actors and the learner on separate GPUs, or on shared ones if there are few.

    The engine has LoRA slots for all versions that its games request at once, as far as memory
    allows, and plays as many games of typical length as its cache holds; if games are longer, vLLM
    lets some wait.
    """
    placed = _placed(case)
    for slots in range(case.max_loras + 1, case.wanted_loras + 1):
        if placed.max_loras >= versions_at_once(case.config, placed.games):
            break
        with contextlib.suppress(DoesNotFitError):
            placed = _placed(replace(case, max_loras=slots))
    return placed


def _placed(case: Case) -> Placed:
    """Place processes with as many LoRA slots as the case has."""
    config, gpus = case.config, case.machine.usable_gpus
    per_card = _engines_per_card(case)
    actors, learners, shared = _cards(config, gpus, case.ranks, per_card)
    engine = case.engine_memory(on_gpu=True)
    used = [card for cards in actors for card in cards]
    learner_on = smallest(learners, by_share=False) if learners else None
    if shared:
        budget = SharedCard(
            config=config,
            engine=engine,
            learner=case.learner_memory(on_gpu=True),
            device=smallest([*used, *learners]),
            longest=case.longest,
            per_card=per_card,
        ).budget()
    else:
        left = learner_on.free_bytes if learner_on else 0
        budget = engine_alone(
            config, engine, smallest(used), case.longest, learner_bytes=left, per_card=per_card
        )
    cached_tokens = engine.tokens(budget.engine_bytes)
    asked = config.actors.games_in_flight
    return Placed(
        actors=tuple(case.place(*cards) for cards in actors),
        learners=tuple(case.place(card) for card in learners),
        budget=budget,
        games=min(VLLM_GAMES, cached_tokens // case.typical) if asked == "auto" else asked,
        max_loras=case.max_loras,
        engines_per_gpu=per_card,
        engine=engine,
        cached_tokens=cached_tokens,
        learner_on=learner_on,
    )


def _engines_per_card(case: Case) -> int:
    """Count a GPU's engines: several of a small model, which is limited by its CPU time.

    One if the number of actors or their share of memory is given, or if a GPU takes one process.
    """
    actors, gpus = case.config.actors, case.machine.usable_gpus
    if actors.engines_per_gpu != "auto":
        return actors.engines_per_gpu
    given = actors.num != "auto" or actors.gpu_memory != "auto" or actors.tensor_parallel > 1
    exclusive = any(gpu.mode == "exclusive" for gpu in gpus)
    if given or exclusive or case.shape.parameters > _SMALL_ENGINE:
        return 1
    by_memory = min(gpu.total_bytes for gpu in gpus) // _ENGINE_ROOM
    by_cores = case.machine.cores // (_ENGINE_CORES * len(gpus))
    games = games_at_once(case.config, sync=case.config.loop.mode == "sync")
    by_games = games // (_ENGINE_GAMES * len(gpus))
    return int(max(1, min(_MOST_ENGINES, by_memory, by_cores, by_games)))


def games_at_once(config: RunConfig, *, sync: bool) -> float:
    """Return the games that may be in flight before their samples are too stale.

    In a two-seat game against past versions and others, one seat is trained.
    """
    draw = config.opponents.draw
    others = draw.past + draw.fixed * bool(config.opponents.fixed)
    trained = 1 - others / ((draw.self + others) or 1.0) / 2
    turns = config.learner.batch_size if sync else config.buffer_capacity
    return max(1.0, turns / GAME_TURNS / trained)


def _cards(
    config: RunConfig, gpus: Sequence[GPU], ranks: int, per_card: int
) -> tuple[list[Sequence[GPU]], Sequence[GPU], bool]:
    """Return the GPUs of each actor, the GPUs of the learner ranks, and whether they are shared."""
    actors = config.actors
    span = actors.tensor_parallel
    least = span * (1 if actors.num == "auto" else math.ceil(actors.num / per_card))
    few = least + ranks > len(gpus) >= max(least, ranks)
    together = actors.share_gpu in ("split", "sleep") or (actors.share_gpu == "auto" and few)
    shared = ranks > 0 and together
    own = _of_one_node(gpus, ranks)
    learners = own[:ranks] if shared else own[max(0, len(own) - ranks) :]
    free = gpus if shared else [card for card in gpus if card not in learners]
    spans = _spans([card for card in free for _ in range(per_card)], span)
    num = len(spans) if actors.num == "auto" else actors.num
    if ranks > len(gpus):
        raise too_few(f"learner.num = {ranks}", ranks, gpus, f"learner.num to {len(gpus)}")
    if num < 1 or num > len(spans):
        wanted = f"actors.num = {actors.num} with actors.tensor_parallel = {span}"
        beside = f" beside learner.num = {ranks}" if ranks else ""
        if spans:
            change = f"actors.num to {len(spans)}"
        elif len(gpus) >= span:
            change = "actors.share_gpu to auto"
        else:
            change = f"actors.tensor_parallel to {len(gpus)}"
        needed = math.ceil(max(1, num) * span / per_card)
        raise too_few(wanted + beside, needed, gpus, change)
    return spans[:num], learners if ranks else (), shared


def _of_one_node(gpus: Sequence[GPU], ranks: int) -> Sequence[GPU]:
    """Return the GPUs of the last node that has `ranks` of them; of all nodes if none has."""
    of_node: dict[str, list[GPU]] = {}
    for card in gpus:
        of_node.setdefault(card.node, []).append(card)
    return next((own for own in reversed(of_node.values()) if len(own) >= ranks), gpus)


def _spans(cards: Sequence[GPU], span: int) -> list[Sequence[GPU]]:
    """Return the GPUs of each engine, which belong to one node."""
    of_node: dict[str, list[GPU]] = {}
    for card in cards:
        of_node.setdefault(card.node, []).append(card)
    return [
        own[first : first + span]
        for own in of_node.values()
        for first in range(0, len(own) - span + 1, span)
    ]


EMBEDDED_GAMES = 32
"""Games in flight on one embedded engine."""
SMALL = 20_000_000
"""Parameters below which launching a GPU's kernels takes longer than a CPU's arithmetic."""


def on_processor(case: Case) -> Placed:
    """Place actors on the CPU, and the learner on GPUs if there are any and the model is large."""
    config, machine = case.config, case.machine
    small = case.shape.parameters < SMALL and case.dtype == "float32"
    gpus = () if small else machine.usable_gpus
    ranks, asked = case.ranks, config.actors
    if 0 < len(gpus) < ranks:
        raise too_few(f"learner.num = {ranks}", ranks, gpus, f"learner.num to {len(gpus)}")
    gpus = tuple(_of_one_node(gpus, ranks)[:ranks])
    # On two or more cores, playing and learning at once is faster (docs/benchmarks.md).
    sync = config.loop.mode == "sync" or (config.loop.mode == "auto" and machine.cores == 1)
    engine = case.engine_memory(on_gpu=False)
    wanted = EMBEDDED_GAMES if asked.games_in_flight == "auto" else asked.games_in_flight
    learners = tuple(map(case.place, gpus)) or (case.place(),) * ranks
    learner_at = learners[0] if learners else None
    actor_bytes, most = engine.total(tokens_of(case, wanted)), case.engine.most_on_processor
    rooms = [_room(node, actor_bytes, most, learner_at, sync=sync) for node in machine.each]
    actors, memory = zip(*rooms, strict=True)
    counts = _shared_out(sum(actors) if asked.num == "auto" else asked.num, actors)
    limit = min(held // count for held, count in zip(memory, counts, strict=True) if count)
    fitting = 2 * engine.tokens(limit) // case.longest
    games = max(1, min(wanted, fitting)) if asked.games_in_flight == "auto" else wanted
    processor = Device("the CPU", machine.memory_bytes, limit, on_gpu=False)
    check_engine_fits(engine, limit, processor, tokens_of(case, games))
    learner_on = None
    if ranks:
        own = processor._replace(free_bytes=machine.each[-1].memory_bytes // 2 // ranks)
        learner_on = smallest(gpus, by_share=False) if gpus else own
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


def _room(
    node: Machine, actor_bytes: int, most: int | None, learner: Placement | None, *, sync: bool
) -> tuple[int, int]:
    """Return how many actors a node can serve, and the memory that they share.

    A learner on its CPU leaves half of all memory, not of the free memory, since a run must not
    depend on that. In async mode a learner of this node leaves half of the cores.
    """
    learns = learner is not None and learner.node == node.node
    half = node.memory_bytes // 2 if learner is not None and learns and not learner.gpus else 0
    for_actors = node.memory_bytes - half
    by_cores = node.cores if sync or not learns else node.cores // 2
    by_memory = min(for_actors, node.free_bytes) // actor_bytes
    return most or max(1, min(by_cores, by_memory)), for_actors


def _shared_out(num: int, rooms: Sequence[int]) -> list[int]:
    """Divide `num` actors among nodes, each to the one with the fewest for its room.

    >>> _shared_out(4, [2, 1])
    [3, 1]
    """
    counts = [0] * len(rooms)
    for _ in range(num):
        shares = [(count + 1) / room for count, room in zip(counts, rooms, strict=True)]
        counts[shares.index(min(shares))] += 1
    return counts


def tokens_of(case: Case, games: int) -> int:
    """Count the tokens that games cache at once; few prompts have full length, but one may."""
    return max(case.longest, games * case.longest // 2)
