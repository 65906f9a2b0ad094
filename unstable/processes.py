"""The processes of a run: started where the plan says, probed, and gone afterwards."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from itertools import chain

from unstable.collectors.probe import (
    BOUNDS,
    check_probe,
    no_adapter,
    probe_adapters,
    probe_samples,
)
from unstable.config import RunConfig
from unstable.folder import RunFolder
from unstable.models.shape import read_shape
from unstable.placement import Plan
from unstable.remote import RemoteActor, cluster
from unstable.remote_learner import RemoteLearner


@contextlib.asynccontextmanager
async def processes(
    config: RunConfig, folder: RunFolder, plan: Plan, cores: int
) -> AsyncIterator[tuple[list[RemoteActor], RemoteLearner]]:
    """The actors and the learner of a config that is resolved by `plan`, on so many cores.

    Raises what kept one from starting.
    """
    threads = cores if plan.mode == "sync" else max(1, cores - len(plan.actors))
    with cluster(len(plan.actors) + len(plan.learners)):
        actors = [RemoteActor(config, folder, i, gpus) for i, gpus in enumerate(plan.actors)]
        learner = RemoteLearner(config, folder, threads, [",".join(g) for g in plan.learners])
        if plan.share == "off":
            await asyncio.gather(learner.start(), *(actor.start() for actor in actors))
        else:
            await _start_sharing(actors, learner, sleeping=plan.share == "sleep")
        try:
            await _probe(config, actors, learner)
            yield actors, learner
        finally:
            await asyncio.gather(*(actor.close() for actor in actors))


async def _start_sharing(
    actors: Sequence[RemoteActor], learner: RemoteLearner, sleeping: bool
) -> None:
    """Engines first: they do not start where their share of the memory is not free."""
    await asyncio.gather(*(actor.start() for actor in actors))
    if sleeping:
        await asyncio.gather(*(actor.sleep() for actor in actors))
    await learner.start()
    if sleeping:
        await asyncio.gather(*(actor.wake() for actor in actors))


async def _probe(config: RunConfig, actors: Sequence[RemoteActor], learner: RemoteLearner) -> None:
    """Raise `RuntimeError` unless every engine serves adapters as the learner computes them."""
    shape, size = read_shape(config.model), config.model.adapter
    adapters = probe_adapters(shape, size)
    told = await asyncio.gather(*(actor.probe(adapters, shape.vocabulary) for actor in actors))
    answers = list(chain(*told))
    samples = probe_samples(answers)
    scores = {None: await learner.logprobs_under(no_adapter(shape, size), samples)} | {
        adapter.name: await learner.logprobs_under(adapter, samples) for adapter in adapters
    }
    check_probe(answers, scores, BOUNDS[config.model.dtype])
