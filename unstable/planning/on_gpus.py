"""Placing processes where actors play on GPUs."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace

from unstable.config import RunConfig
from unstable.planning.case import VLLM_GAMES, Case, Placed, smallest, too_few, versions_at_once
from unstable.planning.fit import DoesNotFitError, SharedCard, engine_alone
from unstable.planning.machine import GPU

GAME_TURNS = 8
"""Trained turns of a game of self-play; 7.6 were measured in TicTacToe."""
_SMALL_ENGINE = 500_000_000
_MOST_ENGINES = 4
_ENGINE_ROOM = 20_000_000_000
_ENGINE_CORES = 4
_ENGINE_GAMES = 48
"""Parameters up to which a card has several engines, and how many: one for so many bytes of the
card, cores, and games that may be in flight. An estimate: most of the 16.6 ms of a step of SmolLM2
on an H200 were the processor's."""


def on_gpus(case: Case) -> Placed:
    """vLLM's actors and the learner on cards of their own, or on the same ones if there are few.

    The engine has LoRA slots for all versions that its games ask for at once, as far as memory
    allows, and plays as many games of typical length as its cache holds: where they are longer,
    vLLM lets some wait.
    """
    placed = _placed(case)
    for slots in range(case.max_loras + 1, case.wanted_loras + 1):
        if placed.max_loras >= versions_at_once(case.config, placed.games):
            break
        with contextlib.suppress(DoesNotFitError):
            placed = _placed(replace(case, max_loras=slots))
    return placed


def _placed(case: Case) -> Placed:
    """Place processes with as many slots as the case says."""
    config, gpus = case.config, case.machine.usable_gpus
    per_card = _engines_per_card(case)
    actors, learners, shared = _cards(config, gpus, case.ranks, per_card)
    engine = case.engine_memory(on_gpu=True)
    used = [card for cards in actors for card in cards]
    learner_on = smallest(learners) if learners else None
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
    """Count a card's engines: several of a small model, whose limit is their processor time.

    One where the number of actors or their share of memory is given, or a card takes one process.
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
    """Games that may be in flight, by what is learned from before it is too stale.

    Of two seats, one is trained against past versions and others.
    """
    draw = config.opponents.draw
    others = draw.past + draw.fixed * bool(config.opponents.fixed)
    trained = 1 - others / ((draw.self + others) or 1.0) / 2
    turns = config.learner.batch_size if sync else config.buffer_capacity
    return max(1.0, turns / GAME_TURNS / trained)


def _cards(
    config: RunConfig, gpus: Sequence[GPU], ranks: int, per_card: int
) -> tuple[list[Sequence[GPU]], Sequence[GPU], bool]:
    """Cards of each actor, of each learner rank, and whether they are the same ones."""
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
    """The cards of the last node that has so many; of all nodes where none has."""
    of_node: dict[str, list[GPU]] = {}
    for card in gpus:
        of_node.setdefault(card.node, []).append(card)
    return next((own for own in reversed(of_node.values()) if len(own) >= ranks), gpus)


def _spans(cards: Sequence[GPU], span: int) -> list[Sequence[GPU]]:
    """Cards of one engine each, which are one node's."""
    of_node: dict[str, list[GPU]] = {}
    for card in cards:
        of_node.setdefault(card.node, []).append(card)
    return [
        own[first : first + span]
        for own in of_node.values()
        for first in range(0, len(own) - span + 1, span)
    ]
