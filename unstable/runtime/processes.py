"""The processes of a run: started where the plan says, probed, and gone afterwards."""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any

from unstable.config import RunConfig
from unstable.engines.probe import (
    BOUNDS,
    check_probe,
    no_adapter,
    probe_adapters,
    probe_samples,
)
from unstable.loop.context import sleeping
from unstable.loop.protocols import Actor, Learner
from unstable.models.shape import read_shape
from unstable.planning.machine import Placement
from unstable.planning.plan import Plan
from unstable.records.folder import RunFolder
from unstable.runtime.actors import RemoteActor
from unstable.runtime.cluster import cluster
from unstable.runtime.learner_ranks import RemoteLearner
from unstable.tracking.status import Waits


@contextlib.asynccontextmanager
async def processes(
    config: RunConfig,
    plan: Plan,
    folder: RunFolder,
    at: Callable[[str], None],
    waits: Waits | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[tuple[Sequence[Actor], Learner]]:
    """The actors and the learner of a config that is resolved by `plan`.

    `at` is called with what the start has come to; `waits` says what is waited for, and `say`
    tells a person what is doubtful, and that an actor has died. Raises what kept one from starting.
    """
    at("starting Ray")
    with cluster(len(plan.actors) + len(plan.learners)):
        at("starting: loading the model")
        actors = _actors(config, plan.actors, folder, waits, say)
        learner = RemoteLearner(config, folder, plan.learners, plan.learner_threads, waits)
        async with _closed(actors):
            starts = _starts(actors, plan.actors)
            if plan.share == "off":
                await _together(*starts, learner.start())
            else:  # engines first: they do not start where their share of the memory is not free
                await _together(*starts)
                async with sleeping(actors, config):
                    await learner.start()
            at("starting: comparing engines and learner")
            for doubt in await _probe(config, actors, learner):
                say(f"note: {doubt}")
            yield actors, learner


@contextlib.asynccontextmanager
async def acting(
    config: RunConfig,
    placements: Sequence[Placement],
    folder: RunFolder,
    at: Callable[[str], None],
) -> AsyncIterator[Sequence[Actor]]:
    """Actors alone, one at each place; `at` as above."""
    at("starting Ray")
    with cluster(len(placements)):
        at("starting: loading the model")
        actors = _actors(config, placements, folder)
        async with _closed(actors):
            await _together(*_starts(actors, placements))
            yield actors


async def _together(*starts: Coroutine[Any, Any, None]) -> None:
    """All of them at once; the error of one ends the others, and is raised when they have ended."""
    tasks = [asyncio.ensure_future(each) for each in starts]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _starts(
    actors: Sequence[RemoteActor], placements: Sequence[Placement]
) -> list[Coroutine[Any, Any, None]]:
    """The actors' starts; one after another on a card, whose free memory an engine measures."""
    queues: dict[object, list[RemoteActor]] = defaultdict(list)
    for index, (actor, placement) in enumerate(zip(actors, placements, strict=True)):
        queues[placement.gpus or index].append(actor)

    async def in_turn(queue: Sequence[RemoteActor]) -> None:
        for actor in queue:
            await actor.start()

    return [in_turn(queue) for queue in queues.values()]


def _actors(
    config: RunConfig,
    placements: Sequence[Placement],
    folder: RunFolder,
    waits: Waits | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> list[RemoteActor]:
    return [
        RemoteActor(config, folder, index, placement, waits, say)
        for index, placement in enumerate(placements)
    ]


@contextlib.asynccontextmanager
async def _closed(actors: Sequence[RemoteActor]) -> AsyncIterator[None]:
    """Afterwards the actors' engines are ended, whatever has happened."""
    try:
        yield
    finally:
        await asyncio.gather(*(actor.close() for actor in actors))


async def _probe(
    config: RunConfig, actors: Sequence[RemoteActor], learner: RemoteLearner
) -> list[str]:
    """What is doubtful; raises `RuntimeError` where an engine serves other than what is trained."""
    shape, size = read_shape(config.model), config.model.adapter
    adapters = probe_adapters(shape, size)
    given = await asyncio.gather(*(actor.probe(adapters, shape.vocabulary) for actor in actors))
    samples = probe_samples([answer for answers in given for answer in answers])
    scored: dict[str | None, list[list[float]]] = {
        None: await learner.logprobs_under(no_adapter(shape, size), samples)
    }
    for adapter in adapters:
        scored[adapter.name] = await learner.logprobs_under(adapter, samples)
    doubts: list[str] = []
    first = 0
    for index, answers in enumerate(given):  # each alone: among many, one that is wrong would pass
        own = slice(first, first := first + len(answers))
        scores = {name: logprobs[own] for name, logprobs in scored.items()}
        try:
            found = check_probe(answers, scores, BOUNDS[config.model.dtype])
        except RuntimeError as error:
            raise RuntimeError(f"actor-{index}: {error}") from error
        doubts += [f"actor-{index}: {doubt}" for doubt in found]
    return doubts
