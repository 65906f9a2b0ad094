"""Samples that an actor has sent survive its death: the learner trains on all of them."""

import asyncio
import os
import signal

import pytest

from tests.helpers.loop import Begin, lines, publish_start
from unstable.loop.dealing import Dealer
from unstable.planning.machine import LOOPBACK, Placement
from unstable.runtime.actors import RemoteActor
from unstable.runtime.cluster import cluster
from unstable.types.processes import started

pytestmark = pytest.mark.slow


async def test_batch_of_a_killed_actor_is_trained_completely(begin: Begin) -> None:
    """The actor dies after the buffer admits its games and before the batch is drawn."""
    context = begin(
        num_actors=0,
        loop={"mode": "async", "steps": 3},
        actors={"num": 1, "games_in_flight": 8, "engine": "embedded"},
        learner={"batch_size": 64, "micro_batch_size": 16},
    )
    waits = context.tracker.waits
    with cluster(1):
        actor = RemoteActor(context.config, context.folder, 0, Placement(LOOPBACK), waits)
        context.actors = [actor]
        await actor.start()
        await publish_start(context)
        dealer = Dealer(context, 0, groups=8)
        tasks = [asyncio.create_task(keep()) for keep in (dealer.keep_dealing, dealer.keep_taking)]
        async with asyncio.timeout(300):
            await context.gate.filled.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        pid = waits.processes["actor-0"]
        os.kill(pid, signal.SIGKILL)
        while started(pid) is not None:
            await asyncio.sleep(0.05)
        batch = context.buffer.draw(0)
        assert batch is not None
        update = await context.learner.update(batch)
        await actor.close()
    context.tracker.log_samples(update)
    assert len(update.advantages) == batch.num_samples >= 64
    assert update.metrics["learn/loss"] is not None
    on_file = {
        (game["game"], turn["index"]): turn["sampled"]
        for game in lines(context.folder.games("train", 0))
        for turn in game["turns"]
    }
    trained = lines(context.folder.samples(1))
    assert len(trained) == batch.num_samples
    for sample in trained:
        assert sample["sampled"] == on_file[sample["game"], sample["turn"]]
    context.tracker.close()
