"""The loop: read this page first.

                 ┌─────── opponents: past versions, scripted, endpoints ───────┐
   runtime ─► loop ─┬─► collectors ──GameResult──► buffers ──Batch──► learners ─┐
                    │      ▲  ▲                                                 │
                    │      │  └──── GameSpec ──── league ◄──────────version─────┤
                    │      └──── adapter, by version ◄── records ◄──────────────┘
                    └─► tracking  (beside: receives, never sends back)

It keeps games in flight, feeds the buffer, asks the learner for an update, registers and publishes
the new version, evaluates, and reports to the tracker. Context are handed in as plain objects, so
that the same page runs on Ray actors and, in a test, on objects of this process.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import chain

from unstable.league.evaluation import (
    evaluation_games,
    evaluation_scores,
    game_payoffs,
    game_scores,
    rated_games,
)
from unstable.loop import state
from unstable.loop.context import Context, asleep, exploit, spread
from unstable.types import Batch, GameFailure, GameResult, GameSpec, Trajectory, Update

Finished = tuple[GameResult, list[Trajectory]]


async def train(context: Context) -> str:
    """Play and learn until `loop.steps` updates are made or `loop.max_time` is over; says which.

    From the start on, or from the version that `state.restore` has put back.
    """
    max_time = context.config.loop.max_time
    deadline = math.inf if max_time is None else time.monotonic() + max_time
    if not context.published:
        await publish(context, version=0)
    if not context.settled:
        await settle(context)
    play_and_learn = take_turns if context.config.loop.mode == "sync" else run_at_once
    await play_and_learn(context, deadline)
    if left := not_yet(context):
        for find in left:
            await find(context)
        actors = await state.of_actors(context)
        context.tracker.end_update(context.registry.current)
        state.keep(context, actors)
    return "all updates made" if context.is_done else "time is up"


async def take_turns(context: Context, deadline: float) -> None:
    """Synchronous: play until a batch is there, finish the games in flight, update, go on."""
    while not context.is_done and time.monotonic() < deadline:
        batch = context.buffer.draw(context.registry.current)
        if batch is None:
            await play_round(context)
        else:
            await learn(context, batch)


async def play_round(context: Context) -> None:
    """Play until what the next batch lacks is there, an equal share on each actor.

    A game gives a sample at least, unless an opponent forfeits first or it ends in its opening:
    then another round comes.
    """
    version, past = context.registry.current, context.registry.past()
    ready = context.buffer.ready(version)
    share = math.ceil((context.config.learner.batch_size - ready) / len(context.actors))
    orders: list[list[GameSpec]] = [[] for _ in context.actors]
    for index, specs in enumerate(orders):
        while len(specs) < share:
            specs += context.router.draw(index, version, past)
    context.tracker.phase("playing", ready, context.config.learner.batch_size)
    played = await asyncio.gather(
        *(played_by(context, index, specs, share) for index, specs in enumerate(orders))
    )
    for result, trajectories in in_order(chain(*played)):
        context.admit(result, trajectories)


async def run_at_once(context: Context, deadline: float) -> None:
    """Asynchronous: games are always in flight while updates are made out of what has arrived."""
    in_flight = context.config.actors.games_in_flight
    assert isinstance(in_flight, int), "planning resolves auto"
    size = context.config.group_size
    # A group ends with its slowest game: one more group than fits keeps the engine busy meanwhile,
    # and as many more as reward terms may keep waiting for.
    groups = math.ceil((in_flight + context.rewards.at_once) / size) + (size > 1)
    places = [index for index in range(len(context.actors)) for _ in range(groups)]
    tasks = [asyncio.create_task(keep_playing(context, index)) for index in places]
    tasks.append(asyncio.create_task(keep_learning(context, deadline)))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # only learning ends by itself; playing ends by an error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def keep_playing(context: Context, index: int) -> None:
    """One group after another, each as soon as the gate lets it in."""
    while True:
        await context.gate.enter(context.registry.current)
        specs = context.router.draw(index, context.registry.current, context.registry.past())
        context.in_flight |= {spec.game_id: spec for spec in specs}
        samples = 0
        async for result, trajectories in play(context, index, specs):
            context.admit(result, trajectories)  # at once: a game that is on file counts
            samples += sum(len(each.samples) for each in trajectories)
        context.gate.leave(context.registry.current, samples)


async def keep_learning(context: Context, deadline: float) -> None:
    """One update after another, each as soon as its batch is there."""
    batch_size = context.config.learner.batch_size
    while not context.is_done and time.monotonic() < deadline:
        context.tracker.phase("playing", context.buffer.ready(context.registry.current), batch_size)
        seconds = None if deadline == math.inf else deadline - time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                await context.gate.filled.wait()
        except TimeoutError:
            return
        batch = context.buffer.draw(context.registry.current)
        context.gate.look(context.registry.current)
        if batch is not None:
            await learn(context, batch)
        context.gate.look(
            context.registry.current
        )  # what was ready may be too old for the new version


async def play(
    context: Context, index: int, specs: Sequence[GameSpec], enough: int | None = None
) -> AsyncIterator[Finished]:
    """Games of one actor, with their trajectories; each is on file as soon as it is over."""
    async for judged in context.rewards.judge(context.actors[index].play(specs, enough)):
        version = context.registry.current
        if isinstance(judged, GameFailure):
            context.count(judged)
            continue
        result, trajectories = judged
        context.count(result)
        if result.spec.purpose == "train":
            context.tracker.add_trajectory(result, trajectories, version, index)
        else:
            context.tracker.add_eval_episode(result, version)
        yield result, trajectories
        if context.stats_due(index):
            context.tracker.log_actor(index, await context.actors[index].stats())


async def played_by(
    context: Context, index: int, specs: Sequence[GameSpec], enough: int | None = None
) -> list[Finished]:
    """All of them, when they are over."""
    return [finished async for finished in play(context, index, specs, enough)]


def in_order(played: Iterable[Finished]) -> list[Finished]:
    """All actors' games by id: what follows must not be a matter of who was faster."""
    return sorted(played, key=lambda finished: finished[0].spec.game_id)


async def learn(context: Context, batch: Batch) -> None:
    """One update, from a batch to a version that is published, and what follows from it."""
    context.tracker.phase("updating")
    with context.interrupt.held(f"update {batch.version + 1}"):
        async with asleep(context.actors, context.config):
            update = await context.learner.update(batch)
            like = await apply_interventions(context, update)
        context.tracker.log_learner(update)
        context.tracker.log_samples(update, batch)
        await publish(context, update.version, like)
    await settle(context)


async def settle(context: Context) -> None:
    """What follows a version's publication: the evaluations that are due, and its row."""
    version, config = context.registry.current, context.config.eval
    for every, find in ((config.every, evaluate), (config.exploitability.every, measure)):
        if every and (version % every == 0 or context.is_done):
            await find(context)
    context.tracker.log_buffer(context.buffer.stats())
    context.tracker.log_ratings(context.registry.ratings())
    actors = await state.of_actors(context)
    context.tracker.end_update(version)
    context.settled = True
    state.keep(context, actors)


async def apply_interventions(context: Context, update: Update) -> int:
    """Have the guard look at an update, and do what an alarm leads to before it is published.

    Returns the version that the new one comes from: the one before it or, after a rollback, the
    best one, which it then is again by another number.
    """
    guard, config = context.guard, context.config.guard
    context.tracker.log_alarms(guard.check(update.version, update.metrics))
    actions, best = guard.take_actions(update.version), guard.best
    if "opponents" in actions:
        context.schedule.shares = config.opponents
    like = update.version - 1
    if "rollback" in actions and best is not None:
        await context.learner.restore(best)
        like = best
    if "learning_rate" in actions:
        await context.learner.scale_rate(config.factor)
    context.tracker.log_actions(actions, best, context.schedule.shares.model_dump())
    return like


async def publish(context: Context, version: int, like: int | None = None) -> None:
    """Save a version, hand it to every actor, and only then let games be drawn for it.

    It enters the ratings as strong as `like`.
    """
    context.tracker.phase("publishing")
    context.registry.add(version, like)
    await context.learner.save(version)
    await asyncio.gather(*(actor.publish(version) for actor in context.actors))
    actors = await state.of_actors(context)
    context.registry.current = version
    context.published.add(version)
    context.settled = False
    state.keep(context, actors)
    kept = {version, *context.registry.past(), *context.config.openings.versions}
    shown = {0} if context.guard.best is None else {0, context.guard.best}
    # What retires below goes with the next version: games in flight may need it once more. The
    # start stays, for whoever compares with it, and so does the best one.
    newest, needed = context.config.tracking.keep_checkpoints, context.guard.needed
    context.folder.prune(newest, adapters=kept | context.published | shown, whole=needed)
    for old in context.published - kept:
        await asyncio.gather(*(actor.retire(old) for actor in context.actors))
    context.published &= kept


async def evaluate(context: Context) -> None:
    """Have the current version play its evaluation games, apart from everything that is trained."""
    version = context.registry.current
    specs = evaluation_games(context.config, version)
    context.tracker.phase("evaluating", 0, len(specs))
    played = await spread(specs, context.actors, partial(played_by, context))
    context.evaluated = version
    results = [result for result, _ in in_order(played)]
    for result in rated_games(context.config, version, results):
        context.registry.record(result)
    if version == 0:
        context.first_scores = game_scores(version, results)
        context.first_payoffs = game_payoffs(version, results)
    first = (context.first_scores, context.first_payoffs) if version else (None, None)
    scores = evaluation_scores(version, results, *first)
    context.tracker.log_evaluation(scores)
    context.tracker.log_alarms(context.guard.score(scores))
    context.tracker.name_best(context.guard.best)
    context.tracker.log_ratings(context.registry.ratings())


async def measure(context: Context) -> None:
    """Have the exploitability of the current version computed, where it is asked for."""
    version = context.registry.current
    for number, game in enumerate(context.exact_games):
        context.tracker.phase("computing exploitability", number, len(context.exact_games))
        context.tracker.log_exploitability(await exploit(context.actors, game, version))
    context.measured = version


def not_yet(context: Context) -> list[Callable[[Context], Awaitable[None]]]:
    """What a run wants to know of its current version and does not."""
    config, version = context.config.eval, context.registry.current
    kinds = (
        (config.every, context.evaluated, evaluate),
        (config.exploitability.every, context.measured, measure),
    )
    return [find for every, last, find in kinds if every and last < version]
