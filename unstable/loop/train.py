"""Training loop of self-play: read this file first.

                 ┌─────── opponents: past versions, scripted, endpoints ───────┐
   runtime ─► loop ─┬─► collectors ──GameResult──► buffers ──Batch──► learners ─┐
                    │      ▲  ▲                                                 │
                    │      │  └──── GameSpec ──── league ◄──────────version─────┤
                    │      └──── adapter, by version ◄──────────────────────────┤
                    └─► tracking  (beside: receives, never sends back)          └─► records

The loop keeps games in flight, fills the buffer, requests updates from the learner, registers and
publishes new versions, evaluates them, and reports to the tracker. The parts of a run are passed in
as a `Context` of plain objects, so that the same code runs on Ray actors and, in a test, on objects
of this process.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from itertools import chain

from unstable.datasets.offline import OfflineData
from unstable.loop import state
from unstable.loop.context import Context, Made, sleeping
from unstable.loop.dealing import Dealer
from unstable.loop.evaluating import due_evaluations, end_evaluation, end_evaluations
from unstable.loop.protocols import Actor, HeldVersion
from unstable.types import GameSpec, PackedBatch, PlayedGame, Update

ON_THEIR_WAY = 1 / 8
"""Additional games that are dealt to an actor, as a share of its games in flight."""
WAIT_S = 5.0
"""Seconds between two checks of the tasks of a run in asynchronous play."""


async def train(context: Context) -> str:
    """Play and learn until `loop.steps` updates or `loop.max_time`; return the reason of the end.

    Begins with version 0, or with the version that `state.restore` has restored.
    """
    max_time = context.config.loop.max_time
    deadline = math.inf if max_time is None else time.monotonic() + max_time
    if not context.versions.published:
        context.tracker.phase("publishing")
        await publish(context, await context.learner.hold())
    if not context.versions.finalized:
        await finalize(context)
    if context.is_done:
        await end_evaluations(context)
    elif context.offline is not None:
        await run_offline(context, context.offline, deadline)
    elif context.config.loop.mode == "sync":
        await run_sync(context, deadline)
    else:
        await run_async(context, deadline)
    if missing := due_evaluations(context, context.version, is_last=True):
        for run_evaluation in missing:
            await run_evaluation(context, context.version)
        await end_update(context)
    return "all updates made" if context.is_done else "time is up"


async def run_sync(context: Context, deadline: float) -> None:
    """Alternate between rounds of play, until a batch is ready, and updates."""
    while not context.is_done and time.monotonic() < deadline:
        batch = context.buffer.draw(context.version)
        if batch is None:
            await play_round(context)
        else:
            await learn(context, batch)


async def run_offline(context: Context, data: OfflineData, deadline: float) -> None:
    """Make updates from batches of recorded games; nothing is played."""
    for batch in data.batches(context.version):
        if context.is_done or time.monotonic() >= deadline:
            break
        context.tracker.log_offline({"offline/epoch": data.epoch(batch.version + 1)})
        await learn(context, batch)


async def play_round(context: Context) -> None:
    """Play the samples that the next batch lacks, an equal share on each actor.

    Most games give at least one sample. A game gives none if an opponent forfeits first or if it
    ends in its opening: then the batch needs another round.
    """
    while not context.joined.empty():
        await take_in(context, context.joined.get_nowait())
    ready = context.buffer.ready(context.version)
    share = math.ceil((context.config.learner.batch_size - ready) / len(context.actors))
    assigned: list[list[GameSpec]] = [[] for _ in context.actors]
    for index, specs in enumerate(assigned):
        while len(specs) < share:
            specs += context.schedule.draw(
                index, context.current, context.past, context.probabilities
            )
    context.tracker.phase("playing", ready, context.config.learner.batch_size)
    played = await asyncio.gather(
        *(play_share(context, index, specs, share) for index, specs in enumerate(assigned))
    )
    context.end_round(chain(*played))


async def play_share(
    context: Context, index: int, specs: Sequence[GameSpec], enough: int
) -> list[PlayedGame]:
    """Play a round's games on one actor, beginning none once `enough` samples are in progress.

    Games are recorded as they end, and count once all actors are done.
    """
    played: list[PlayedGame] = []
    async with aclosing(context.actors[index].play_round(specs, enough)) as lists:
        async for ended in lists:
            played += context.take(ended, index)
            await context.look_at(index)
    return played


async def run_async(context: Context, deadline: float) -> None:
    """Keep games in flight at all times, and make updates from finished games.

    Versions are published and evaluated while the next update is made.
    """
    in_flight = context.config.actors.games_in_flight
    assert isinstance(in_flight, int), "planning resolves auto"
    size = context.config.group_size
    # A group ends with its slowest game: one more group than fits keeps the engine busy meanwhile.
    # Further groups cover games that wait for reward terms or are in transit.
    waiting = math.ceil(context.rewards.at_once / len(context.actors) + in_flight * ON_THEIR_WAY)
    groups = math.ceil((in_flight + waiting) / size) + (size > 1)
    tasks: set[asyncio.Task[None]] = set()

    def begin(index: int) -> None:
        dealer = Dealer(context, index, groups)
        tasks.update(map(asyncio.create_task, (dealer.keep_dealing(), dealer.keep_taking())))

    for index in range(len(context.actors)):
        begin(index)
    beside = (
        keep_publishing(context),
        keep_evaluating(context),
        keep_learning(context, deadline),
        keep_growing(context, begin),
    )
    tasks.update(map(asyncio.create_task, beside))
    try:
        while not (done := {task for task in tasks if task.done()}):
            # Tasks of new actors may have started meanwhile.
            await asyncio.wait(tasks, timeout=WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # raises its error; only learning ends without one
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def keep_growing(context: Context, begin: Callable[[int], None]) -> None:
    """Take in actors that join, and call `begin` with the index of each."""
    while True:
        begin(await take_in(context, await context.joined.get()))


async def take_in(context: Context, actor: Actor) -> int:
    """Publish all versions to an actor that has joined, and return its index."""
    async with context.publishing:
        for player in sorted(context.versions.published, key=lambda player: player.version or 0):
            await actor.publish(player)
        await actor.announce(context.current)
        context.actors.append(actor)
        context.schedule.resize(len(context.actors))
    return len(context.actors) - 1


async def keep_learning(context: Context, deadline: float) -> None:
    """Make updates, each as soon as its batch is ready.

    Returns once all versions are published and evaluated.
    """
    batch_size, steps = context.config.learner.batch_size, context.config.loop.steps
    while context.versions.trained < steps and time.monotonic() < deadline:
        context.tracker.phase("playing", context.buffer.ready(context.versions.trained), batch_size)
        seconds = None if deadline == math.inf else deadline - time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                await context.gate.filled.wait()
        except TimeoutError:
            break
        if context.interrupt.wanted:  # the run ends once all versions are published
            break
        batch = context.buffer.draw(context.versions.trained)
        context.gate.look(context.versions.trained)
        if batch is not None:
            await learn_ahead(context, batch)
        context.gate.look(context.versions.trained)  # samples may be too old for the new version
    context.tracker.phase("publishing")
    await context.publications.until(0)
    context.tracker.phase("evaluating")
    await context.evaluations.until(0)


async def learn_ahead(context: Context, batch: PackedBatch) -> None:
    """Make an update from a batch, and leave the new version to `keep_publishing`.

    By then the previous version is published, and at most one evaluation is unfinished.
    """
    context.tracker.phase("updating")
    with context.interrupt.deferred(batch.version + 1):
        update = await context.learner.update(batch)
        context.tracker.phase("publishing")
        await context.publications.until(0)
        context.tracker.phase("evaluating")
        await context.evaluations.until(1)
        context.versions.trained = update.version
        await context.publications.add(await conclude(context, update))
        if context.interrupt.wanted:
            await context.publications.until(0)


async def keep_publishing(context: Context) -> None:
    """Publish each new version, and write its row."""
    async for made in context.publications.each():
        with context.interrupt.deferred(made.held.version):
            await publish(context, *made)
            await finalize(context)


async def keep_evaluating(context: Context) -> None:
    """Evaluate published versions, in order, while others are trained."""
    async for version in context.evaluations.each():
        await end_evaluation(context, version)


async def learn(context: Context, batch: PackedBatch) -> None:
    """Make an update from a batch, and publish, evaluate and record the new version."""
    context.tracker.phase("updating")
    with context.interrupt.deferred(batch.version + 1):
        async with sleeping(context.actors, context.config):
            made = await conclude(context, await context.learner.update(batch))
        context.tracker.phase("publishing")
        await publish(context, *made)
    await finalize(context)


async def conclude(context: Context, update: Update) -> Made:
    """Pass an update to guard and tracker, and return the held version that it made."""
    inherits_from = await apply_interventions(context, update)
    context.tracker.log_learner(update)
    context.tracker.log_samples(update)
    return Made(await context.learner.hold(), inherits_from)


async def finalize(context: Context) -> None:
    """Write the row of a published version, and run its due evaluations.

    In asynchronous play the evaluations are left to `keep_evaluating`.
    """
    due = due_evaluations(context, context.version)
    if context.config.loop.mode == "async":
        if due and context.version not in context.evaluations.items:
            await context.evaluations.add(context.version)
    else:
        for run_evaluation in due:
            await run_evaluation(context, context.version)
    context.tracker.log_buffer(context.buffer.stats())
    context.log_strengths()
    context.versions.finalized = True
    await end_update(context)


async def end_update(context: Context) -> None:
    """Write the current version's row, and the state that a resume begins with."""
    actors = await state.actor_states(context)
    context.tracker.end_update(context.version)
    state.save(context, actors)


async def apply_interventions(context: Context, update: Update) -> int:
    """Check an update with the guard, and act on alarms before the version is published.

    Returns the version from which the new one inherits its rating: the previous version or, after a
    rollback, the best version, whose weights the new one then has.
    """
    guard, config = context.guard, context.config.guard
    context.tracker.log_alarms(guard.check(update.version, update.metrics))
    actions, best = guard.take_actions(update.version), guard.best
    if "opponents" in actions:
        context.schedule.shares = config.opponents
    inherits_from = update.version - 1
    if "rollback" in actions and best is not None:
        await context.learner.restore(best)
        inherits_from = best
    if "learning_rate" in actions:
        await context.learner.scale_rate(config.factor)
    context.tracker.log_actions(actions, best, context.schedule.shares.model_dump())
    return inherits_from


async def publish(context: Context, held: HeldVersion, inherits_from: int | None = None) -> None:
    """Save a held version and send it to every actor; only then may games be drawn for it.

    The version inherits its rating from `inherits_from`; None: from the previous version.
    """
    context.versions.trained = max(context.versions.trained, held.version)
    player = context.player(held.version)
    source = None if inherits_from is None else context.player(inherits_from)
    context.registry.add(player, source)
    adapter = await held.adapter()
    async with context.publishing:
        await asyncio.gather(
            held.save(),
            *(actor.publish(player, adapter) for actor in context.actors),
        )
        actors = await state.actor_states(context)
        context.registry.announce(player)
        context.draw_envs()
        context.versions.published.add(player)
        context.versions.finalized = False
        state.save(context, actors)
        await asyncio.gather(*(actor.announce(player) for actor in context.actors))
        await retire_unused(context)


async def retire_unused(context: Context) -> None:
    """Delete checkpoints that nothing needs, and retire versions on actors that no game names.

    Versions of unfinished games stay, since a restarted actor or a resumed run may play these games
    again. The newest past opponents of each kept checkpoint stay for a resume from it; the start,
    the best version and each `tracking.keep_every`-th version for comparison.
    """
    bests = [v for v in (context.guard.best, context.best_held_out) if v is not None]
    openers = map(context.player, context.config.openings.versions)
    judged = set(map(context.player, context.evaluations.items))
    playing = {context.current, *context.past, *openers, *judged}
    unfinished = [*context.in_flight.values(), *context.schedule.ahead(context.current)]
    named = {seat.player for spec in unfinished for seat in spec.seats}
    named |= {player for spec in unfinished for player in spec.ensemble}
    kept = context.versions.judging | context.versions.kept | named
    playing |= kept & context.versions.published
    checkpoints = context.config.tracking.keep_checkpoints
    # The oldest kept checkpoint was saved before the pool of the version before it was retired.
    oldest = context.version - checkpoints - context.config.opponents.pool_size
    compared = set(map(context.player, (0, *bests, *range(max(0, oldest), context.version))))
    if every := context.config.tracking.keep_every:
        versions = range(0, context.version + 1, every)
        compared |= set(map(context.player, versions))
    context.folder.prune(
        checkpoints,
        adapters=playing | context.versions.published | compared,
        whole={*map(context.player, context.guard.needed), *judged},
        policy=context.policy,
    )
    for version in context.versions.published - playing:
        await asyncio.gather(*(actor.retire(version) for actor in context.actors))
    context.versions.published &= playing
