"""The processes of a run: started where the plan says, probed, and gone afterwards."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from itertools import chain

from unstable.config import RunConfig
from unstable.engines.probe import (
    BOUNDS,
    check_probe,
    no_adapter,
    probe_adapters,
    probe_samples,
)
from unstable.loop.context import sleeping
from unstable.models.shape import read_shape
from unstable.planning.plan import Ids, Plan
from unstable.records.folder import RunFolder
from unstable.runtime.actors import Adapters, RemoteActor
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
) -> AsyncIterator[tuple[list[RemoteActor], RemoteLearner]]:
    """The actors and the learner of a config that is resolved by `plan`.

    `at` is called with what the start has come to; `waits` says what is waited for. Raises what
    kept one from starting.
    """
    at("starting Ray")
    with cluster(len(plan.actors) + len(plan.learners)):
        at("starting: loading the model")
        actors = _actors(config, plan.actors, folder, waits)
        gpus = [",".join(ids) for ids in plan.learners]
        learner = RemoteLearner(config, folder, plan.learner_threads, gpus, waits)
        starting = asyncio.gather(*(actor.start() for actor in actors))
        if plan.share == "off":
            await asyncio.gather(starting, learner.start())
        else:  # engines first: they do not start where their share of the memory is not free
            await starting
            async with sleeping(actors, config):
                await learner.start()
        at("starting: comparing engines and learner")
        try:
            await _probe(config, actors, learner)
            yield actors, learner
        finally:
            await asyncio.gather(*(actor.close() for actor in actors))


@contextlib.asynccontextmanager
async def acting(
    config: RunConfig, places: Sequence[Ids], folder: RunFolder, at: Callable[[str], None]
) -> AsyncIterator[list[RemoteActor]]:
    """Actors alone, each on the GPUs of its place; `at` as above."""
    at("starting Ray")
    with cluster(len(places)):
        at("starting: loading the model")
        actors = _actors(config, places, folder)
        await asyncio.gather(*(actor.start() for actor in actors))
        yield actors
        await asyncio.gather(*(actor.close() for actor in actors))


def _actors(
    config: RunConfig, places: Sequence[Ids], folder: RunFolder, waits: Waits | None = None
) -> list[RemoteActor]:
    adapters = Adapters(folder)
    return [RemoteActor(config, folder, i, gpus, adapters, waits) for i, gpus in enumerate(places)]


async def _probe(config: RunConfig, actors: Sequence[RemoteActor], learner: RemoteLearner) -> None:
    """Raise `RuntimeError` unless every engine serves adapters as the learner computes them."""
    shape, size = read_shape(config.model), config.model.adapter
    adapters = probe_adapters(shape, size)
    given = await asyncio.gather(*(actor.probe(adapters, shape.vocabulary) for actor in actors))
    answers = list(chain(*given))
    samples = probe_samples(answers)
    scores = {None: await learner.logprobs_under(no_adapter(shape, size), samples)} | {
        adapter.name: await learner.logprobs_under(adapter, samples) for adapter in adapters
    }
    check_probe(answers, scores, BOUNDS[config.model.dtype])
