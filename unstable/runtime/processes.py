"""Processes of a run: started according to the plan, probed, and ended afterwards."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from unstable.config import RunConfig
from unstable.engines.probe import BOUNDS, check_probe, probe_samples
from unstable.loop.context import sleeping
from unstable.loop.protocols import Actor, Learner
from unstable.models.shape import read_shape
from unstable.planning.machine import Placement
from unstable.planning.plan import Plan
from unstable.records.folder import RunFolder
from unstable.runtime.actors import RemoteActor
from unstable.runtime.cluster import cluster, joined
from unstable.runtime.crew import Crew, crew_of
from unstable.runtime.learner_ranks import RemoteLearner
from unstable.runtime.placement import NodePlace, in_turn
from unstable.types.processes import Waits


class Started(NamedTuple):
    """Processes of a run; `joined` queues actors that join later, for the loop to take in."""

    actors: list[Actor]
    learner: Learner
    joined: "asyncio.Queue[Actor]"


@contextlib.asynccontextmanager
async def processes(
    config: RunConfig,
    plan: Plan,
    folder: RunFolder,
    at: Callable[[str], None],
    waits: Waits | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> AsyncIterator[Started]:
    """Start the actors and the learner of a config resolved by `plan`; end them after the block.

    `at` receives each stage of the start, `waits` records calls in progress, and `say` shows the
    user doubts and deaths of actors. Raises the error that kept a process from starting.
    """
    at("starting Ray")
    async with _hosted(config, plan.actors, plan.learners, folder, waits, say, plan.grows) as run:
        at("starting: loading the model")
        learner = RemoteLearner(
            config, folder, run.learner_at, plan.learner_threads, waits, run.crew
        )
        async with _closed(run.actors):
            starts = _starts(run.actors, plan.actors)
            if plan.share == "off":
                await _together(*starts, learner.start())
            else:  # engines first: they start only if their share of the memory is free
                await _together(*starts)
                async with sleeping(run.actors, config):
                    await learner.start()
            at("starting: comparing engines and learner")
            for doubt in await _probe(config, run.actors, learner):
                say(f"note: {doubt}")
            if run.crew is None:
                yield Started([*run.actors], learner, asyncio.Queue())
                return
            run.crew.probe = lambda actor: _probe(config, [actor], learner)
            run.crew.actors += run.actors
            async with _closed(run.crew.actors, but=run.actors):
                yield Started(run.crew.actors, learner, run.crew.joined)


@contextlib.asynccontextmanager
async def acting(
    config: RunConfig,
    placements: Sequence[Placement],
    folder: RunFolder,
    at: Callable[[str], None],
) -> AsyncIterator[Sequence[Actor]]:
    """Start actors without a learner, one per placement; `at` receives each stage of the start."""
    at("starting Ray")
    async with _hosted(config, placements, (), folder) as run:
        at("starting: loading the model")
        async with _closed(run.actors):
            await _together(*_starts(run.actors, placements))
            if run.crew is not None:
                run.crew.actors += run.actors
            yield run.actors


class _Hosted(NamedTuple):
    """Actors of a run that have not started, and places for the learner."""

    actors: list[RemoteActor]
    learner_at: Sequence[Placement | NodePlace]
    crew: Crew | None  # on a cluster


@contextlib.asynccontextmanager
async def _hosted(
    config: RunConfig,
    actors: Sequence[Placement],
    learners: Sequence[Placement],
    folder: RunFolder,
    waits: Waits | None = None,
    say: Callable[[str], None] = lambda _: None,
    grows: bool = False,
) -> AsyncIterator[_Hosted]:
    """Host processes in a local Ray on this machine, or in the config's cluster."""
    if not config.cluster.is_joined:
        with cluster(len(actors) + len(learners)):
            made = [
                RemoteActor(config, folder, index, placement, waits, say)
                for index, placement in enumerate(actors)
            ]
            yield _Hosted(made, learners, None)
        return
    with joined(config.cluster):
        async with crew_of(config, folder, waits or Waits(), say, grows=grows) as crew:
            places = crew.reserve([*actors, *learners])
            own = [crew.actor(place) for place in places[: len(actors)]]
            yield _Hosted([*own], places[len(actors) :], crew)


async def _together(*starts: Coroutine[Any, Any, None]) -> None:
    """Run coroutines concurrently; after an error, cancel and await the others, then raise it."""
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
    """Return the actors' starts, chained per GPU."""
    starts = zip(placements, (actor.start for actor in actors), strict=True)
    return in_turn([*starts])


@contextlib.asynccontextmanager
async def _closed(actors: Sequence[Actor], but: Sequence[Actor] = ()) -> AsyncIterator[None]:
    """Close the engines of the actors in the list after the block, except the ones in `but`."""
    try:
        yield
    finally:
        own = [actor for actor in actors if isinstance(actor, RemoteActor) and actor not in but]
        await asyncio.gather(*(actor.close() for actor in own))


async def _probe(
    config: RunConfig, actors: Sequence[RemoteActor], learner: RemoteLearner
) -> list[str]:
    """Return doubts; raise `RuntimeError` if an engine and the learner have different weights."""
    made, size = await learner.probes(), read_shape(config.model).vocabulary
    assert made is not None, "rank 0 answers"
    given = await asyncio.gather(*(actor.probe(made.versions, size) for actor in actors))
    samples = probe_samples([answer for answers in given for answer in answers])
    scored: dict[str | None, list[list[float]]] = {
        None: await learner.logprobs_under(made.base, samples)
    }
    for adapter in made.versions:
        scored[adapter.name] = await learner.logprobs_under(adapter, samples)
    doubts: list[str] = []
    first = 0
    for index, answers in enumerate(given):  # one by one: a mean over all could hide a mismatch
        own = slice(first, first := first + len(answers))
        scores = {name: logprobs[own] for name, logprobs in scored.items()}
        try:
            found = check_probe(answers, scores, BOUNDS[config.model.dtype])
        except RuntimeError as error:
            raise RuntimeError(f"actor-{index}: {error}") from error
        doubts += [f"actor-{index}: {doubt}" for doubt in found]
    return doubts
