"""Placing processes where actors play on GPUs."""

from collections.abc import Sequence
from dataclasses import replace

from unstable.config import RunConfig
from unstable.planning.case import VLLM_GAMES, Case, Placed, smallest, too_few
from unstable.planning.fit import engine_alone, engine_and_learner
from unstable.planning.machine import GPU
from unstable.planning.slots import slots_that_fit


def on_gpus(case: Case) -> Placed:
    """vLLM's actors and the learner on cards of their own, or on the same ones if there are few.

    The engine has LoRA slots for all versions that may play at once, as far as memory allows, and
    plays as many games of typical length as its cache holds: where they are longer, vLLM lets some
    wait.
    """
    placed = _placed(case)
    if case.wanted_loras > case.max_loras:
        slots = slots_that_fit(
            lambda n: replace(case, max_loras=n).engine_memory(on_gpu=True),
            placed.budget.engine_bytes,
            case.max_loras,
            case.wanted_loras,
        )
        placed = _placed(replace(case, max_loras=slots))
    return placed


def _placed(case: Case) -> Placed:
    """With as many slots as the case says."""
    config, gpus = case.config, case.machine.usable_gpus
    actors, learners, shared = _cards(config, gpus, case.ranks)
    engine = case.engine_memory(on_gpu=True)
    used = [card for cards in actors for card in cards]
    learner_on = smallest(learners) if learners else None
    if shared:
        both, learner = smallest([*used, *learners]), case.learner_memory(on_gpu=True)
        budget = engine_and_learner(config, engine, learner, both, case.longest)
    else:
        left = learner_on.free_bytes if learner_on else 0
        budget = engine_alone(config, engine, smallest(used), case.longest, learner_bytes=left)
    cached_tokens = engine.tokens(budget.engine_bytes)
    asked = config.actors.games_in_flight
    return Placed(
        actors=tuple(case.place(*cards) for cards in actors),
        learners=tuple(case.place(card) for card in learners),
        budget=budget,
        games=min(VLLM_GAMES, cached_tokens // case.typical) if asked == "auto" else asked,
        max_loras=case.max_loras,
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
        raise too_few(f"learner.num = {ranks}", ranks, gpus, f"learner.num to {len(gpus)}")
    if num < 1 or num * span > len(for_actors):
        wanted = f"actors.num = {actors.num} with actors.tensor_parallel = {span}"
        beside = f" beside learner.num = {ranks}" if ranks else ""
        if len(for_actors) >= span:
            change = f"actors.num to {len(for_actors) // span}"
        elif len(gpus) >= span:
            change = "actors.share_gpu to auto"
        else:
            change = f"actors.tensor_parallel to {len(gpus)}"
        raise too_few(wanted + beside, max(1, num) * span, gpus, change)
    return (
        [for_actors[i * span : (i + 1) * span] for i in range(num)],
        gpus[:ranks] if shared else gpus[len(gpus) - ranks :],
        shared,
    )
