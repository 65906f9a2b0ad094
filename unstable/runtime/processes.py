"""The processes of a run: started where the plan says, probed, and gone afterwards."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from unstable.config import RunConfig
from unstable.engines.probe import BOUNDS, check_probe, probe_samples, probes
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
    """The processes of a run, and the actors that have joined it since, to be taken in."""

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
    """The actors and the learner of a config that is resolved by `plan`.

    `at` is called with what the start has come to; `waits` says what is waited for, and `say`
    tells a person what is doubtful, and that an actor has died. Raises what kept one from starting.
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
            else:  # engines first: they do not start where their share of the memory is not free
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
    """Actors alone, one at each place; `at` as above."""
    at("starting Ray")
    async with _hosted(config, placements, (), folder) as run:
        at("starting: loading the model")
        async with _closed(run.actors):
            await _together(*_starts(run.actors, placements))
            if run.crew is not None:
                run.crew.actors += run.actors
            yield run.actors


class _Hosted(NamedTuple):
    """Places of a run's processes: actors that have not started, and the learner's places."""

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
    """Host processes on this machine, in a Ray of the run's own, or in the config's cluster."""
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
    """Run all at once; the error of one ends the others, and is raised when they have ended."""
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
    """The actors' starts, one after another on a card."""
    starts = zip(placements, (actor.start for actor in actors), strict=True)
    return in_turn([*starts])


@contextlib.asynccontextmanager
async def _closed(actors: Sequence[Actor], but: Sequence[Actor] = ()) -> AsyncIterator[None]:
    """End the engines of the actors that are listed after the block, but for some."""
    try:
        yield
    finally:
        own = [actor for actor in actors if isinstance(actor, RemoteActor) and actor not in but]
        await asyncio.gather(*(actor.close() for actor in own))


async def _probe(
    config: RunConfig, actors: Sequence[RemoteActor], learner: RemoteLearner
) -> list[str]:
    """Return doubts; raises `RuntimeError` where an engine serves other than what is trained."""
    made, size = await asyncio.to_thread(probes, config.model), read_shape(config.model).vocabulary
    given = await asyncio.gather(*(actor.probe(made.versions, size) for actor in actors))
    samples = probe_samples([answer for answers in given for answer in answers])
    scored: dict[str | None, list[list[float]]] = {
        None: await learner.logprobs_under(made.base, samples)
    }
    for adapter in made.versions:
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
