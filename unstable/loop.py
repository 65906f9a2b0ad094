"""The loop: read this page first.

                 ┌─────── opponents: past versions, scripted, endpoints ───────┐
   runtime ─► loop ─┬─► collectors ──GameResult──► buffers ──Batch──► learners ─┐
                    │      ▲  ▲                                                 │
                    │      │  └──── GameSpec ──── league ◄──────────version─────┤
                    │      └──── adapter, by version ◄── records ◄──────────────┘
                    └─► tracking  (beside: receives, never sends back)

It keeps games in flight, feeds the buffer, asks the learner for an update, registers and publishes
the new version, evaluates, and reports to the tracker. Rooms are handed in as plain objects, so
that the same page runs on Ray actors and, in a test, on objects of this process.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import chain

from unstable import state
from unstable.league.evaluation import (
    evaluation_games,
    evaluation_scores,
    game_payoffs,
    game_scores,
    rated_games,
)
from unstable.rooms import Rooms, asleep, exploit, spread
from unstable.types import Batch, GameFailure, GameResult, GameSpec, Trajectory, Update

Finished = tuple[GameResult, list[Trajectory]]


async def train(rooms: Rooms) -> str:
    """Play and learn until `loop.steps` updates are made or `loop.max_time` is over; says which.

    From the start on, or from the version that `state.restore` has put back.
    """
    max_time = rooms.config.loop.max_time
    deadline = math.inf if max_time is None else time.monotonic() + max_time
    if not rooms.published:
        await publish(rooms, version=0)
    if not rooms.settled:
        await settle(rooms)
    play_and_learn = take_turns if rooms.config.loop.mode == "sync" else run_at_once
    await play_and_learn(rooms, deadline)
    if left := not_yet(rooms):
        for find in left:
            await find(rooms)
        actors = await state.of_actors(rooms)
        rooms.tracker.end_update(rooms.registry.current)
        state.keep(rooms, actors)
    return "all updates made" if rooms.is_done else "time is up"


async def take_turns(rooms: Rooms, deadline: float) -> None:
    """Synchronous: play until a batch is there, finish the games in flight, update, go on."""
    while not rooms.is_done and time.monotonic() < deadline:
        batch = rooms.buffer.draw(rooms.registry.current)
        if batch is None:
            await play_round(rooms)
        else:
            await learn(rooms, batch)


async def play_round(rooms: Rooms) -> None:
    """Play until what the next batch lacks is there, an equal share on each actor.

    A game gives a sample at least, unless an opponent forfeits first or it ends in its opening:
    then another round comes.
    """
    version, past = rooms.registry.current, rooms.registry.past()
    ready = rooms.buffer.ready(version)
    share = math.ceil((rooms.config.learner.batch_size - ready) / len(rooms.actors))
    orders: list[list[GameSpec]] = [[] for _ in rooms.actors]
    for index, specs in enumerate(orders):
        while len(specs) < share:
            specs += rooms.router.draw(index, version, past)
    rooms.tracker.phase("playing", ready, rooms.config.learner.batch_size)
    played = await asyncio.gather(
        *(played_by(rooms, index, specs, share) for index, specs in enumerate(orders))
    )
    for result, trajectories in in_order(chain(*played)):
        rooms.admit(result, trajectories)


async def run_at_once(rooms: Rooms, deadline: float) -> None:
    """Asynchronous: games are always in flight while updates are made out of what has arrived."""
    in_flight = rooms.config.actors.games_in_flight
    assert isinstance(in_flight, int), "planning resolves auto"
    size = rooms.config.group_size
    # A group ends with its slowest game: one more group than fits keeps the engine busy meanwhile,
    # and as many more as reward terms may keep waiting for.
    groups = math.ceil((in_flight + rooms.rewards.at_once) / size) + (size > 1)
    places = [index for index in range(len(rooms.actors)) for _ in range(groups)]
    tasks = [asyncio.create_task(keep_playing(rooms, index)) for index in places]
    tasks.append(asyncio.create_task(keep_learning(rooms, deadline)))
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # only learning ends by itself; playing ends by an error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def keep_playing(rooms: Rooms, index: int) -> None:
    """One group after another, each as soon as the gate lets it in."""
    while True:
        await rooms.gate.enter(rooms.registry.current)
        specs = rooms.router.draw(index, rooms.registry.current, rooms.registry.past())
        rooms.in_flight |= {spec.game_id: spec for spec in specs}
        samples = 0
        async for result, trajectories in play(rooms, index, specs):
            rooms.admit(result, trajectories)  # at once: a game that is on file counts
            samples += sum(len(each.samples) for each in trajectories)
        rooms.gate.leave(rooms.registry.current, samples)


async def keep_learning(rooms: Rooms, deadline: float) -> None:
    """One update after another, each as soon as its batch is there."""
    batch_size = rooms.config.learner.batch_size
    while not rooms.is_done and time.monotonic() < deadline:
        rooms.tracker.phase("playing", rooms.buffer.ready(rooms.registry.current), batch_size)
        seconds = None if deadline == math.inf else deadline - time.monotonic()
        try:
            async with asyncio.timeout(seconds):
                await rooms.gate.filled.wait()
        except TimeoutError:
            return
        batch = rooms.buffer.draw(rooms.registry.current)
        rooms.gate.look(rooms.registry.current)
        if batch is not None:
            await learn(rooms, batch)
        rooms.gate.look(rooms.registry.current)  # what was ready may be too old for the new version


async def play(
    rooms: Rooms, index: int, specs: Sequence[GameSpec], enough: int | None = None
) -> AsyncIterator[Finished]:
    """Games of one actor, with their trajectories; each is on file as soon as it is over."""
    async for judged in rooms.rewards.judge(rooms.actors[index].play(specs, enough)):
        version = rooms.registry.current
        if isinstance(judged, GameFailure):
            rooms.count(judged)
            continue
        result, trajectories = judged
        rooms.count(result)
        if result.spec.purpose == "train":
            rooms.tracker.add_trajectory(result, trajectories, version, index)
        else:
            rooms.tracker.add_eval_episode(result, version)
        yield result, trajectories
        if rooms.stats_due(index):
            rooms.tracker.log_actor(index, await rooms.actors[index].stats())


async def played_by(
    rooms: Rooms, index: int, specs: Sequence[GameSpec], enough: int | None = None
) -> list[Finished]:
    """All of them, when they are over."""
    return [finished async for finished in play(rooms, index, specs, enough)]


def in_order(played: Iterable[Finished]) -> list[Finished]:
    """All actors' games by id: what follows must not be a matter of who was faster."""
    return sorted(played, key=lambda finished: finished[0].spec.game_id)


async def learn(rooms: Rooms, batch: Batch) -> None:
    """One update, from a batch to a version that is published, and what follows from it."""
    rooms.tracker.phase("updating")
    with rooms.interrupt.held(f"update {batch.version + 1}"):
        async with asleep(rooms.actors, rooms.config):
            update = await rooms.learner.update(batch)
            like = await heed(rooms, update)
        rooms.tracker.log_learner(update)
        rooms.tracker.log_samples(update, batch)
        await publish(rooms, update.version, like)
    await settle(rooms)


async def settle(rooms: Rooms) -> None:
    """What follows a version's publication: the evaluations that are due, and its row."""
    version, config = rooms.registry.current, rooms.config.eval
    for every, find in ((config.every, evaluate), (config.exploitability.every, measure)):
        if every and (version % every == 0 or rooms.is_done):
            await find(rooms)
    rooms.tracker.log_buffer(rooms.buffer.stats())
    rooms.tracker.log_ratings(rooms.registry.ratings())
    actors = await state.of_actors(rooms)
    rooms.tracker.end_update(version)
    rooms.settled = True
    state.keep(rooms, actors)


async def heed(rooms: Rooms, update: Update) -> int:
    """Have the guard look at an update, and do what an alarm leads to before it is published.

    Returns the version that the new one comes from: the one before it or, after a rollback, the
    best one, which it then is again by another number.
    """
    guard, config = rooms.guard, rooms.config.guard
    rooms.tracker.log_alarms(guard.check(update.version, update.metrics))
    actions, best = guard.take_actions(update.version), guard.best
    if "opponents" in actions:
        rooms.schedule.shares = config.opponents
    like = update.version - 1
    if "rollback" in actions and best is not None:
        await rooms.learner.restore(best)
        like = best
    if "learning_rate" in actions:
        await rooms.learner.scale_rate(config.factor)
    rooms.tracker.log_actions(actions, best, rooms.schedule.shares.model_dump())
    return like


async def publish(rooms: Rooms, version: int, like: int | None = None) -> None:
    """Save a version, hand it to every actor, and only then let games be drawn for it.

    It enters the ratings as strong as `like`.
    """
    rooms.tracker.phase("publishing")
    rooms.registry.add(version, like)
    await rooms.learner.save(version)
    await asyncio.gather(*(actor.publish(version) for actor in rooms.actors))
    actors = await state.of_actors(rooms)
    rooms.registry.current = version
    rooms.published.add(version)
    rooms.settled = False
    state.keep(rooms, actors)
    kept = {version, *rooms.registry.past(), *rooms.config.openings.versions}
    shown = {0} if rooms.guard.best is None else {0, rooms.guard.best}
    # What retires below goes with the next version: games in flight may need it once more. The
    # start stays, for whoever compares with it, and so does the best one.
    newest, needed = rooms.config.tracking.keep_checkpoints, rooms.guard.needed
    rooms.folder.prune(newest, adapters=kept | rooms.published | shown, whole=needed)
    for old in rooms.published - kept:
        await asyncio.gather(*(actor.retire(old) for actor in rooms.actors))
    rooms.published &= kept


async def evaluate(rooms: Rooms) -> None:
    """Have the current version play its evaluation games, apart from everything that is trained."""
    version = rooms.registry.current
    specs = evaluation_games(rooms.config, version)
    rooms.tracker.phase("evaluating", 0, len(specs))
    played = await spread(specs, rooms.actors, partial(played_by, rooms))
    rooms.evaluated = version
    results = [result for result, _ in in_order(played)]
    for result in rated_games(rooms.config, version, results):
        rooms.registry.record(result)
    if version == 0:
        rooms.first_scores = game_scores(version, results)
        rooms.first_payoffs = game_payoffs(version, results)
    first = (rooms.first_scores, rooms.first_payoffs) if version else (None, None)
    scores = evaluation_scores(version, results, *first)
    rooms.tracker.log_evaluation(scores)
    rooms.tracker.log_alarms(rooms.guard.score(scores))
    rooms.tracker.name_best(rooms.guard.best)
    rooms.tracker.log_ratings(rooms.registry.ratings())


async def measure(rooms: Rooms) -> None:
    """Have the exploitability of the current version computed, where it is asked for."""
    version = rooms.registry.current
    for number, game in enumerate(rooms.counted):
        rooms.tracker.phase("computing exploitability", number, len(rooms.counted))
        rooms.tracker.log_exploitability(await exploit(rooms.actors, game, version))
    rooms.measured = version


def not_yet(rooms: Rooms) -> list[Callable[[Rooms], Awaitable[None]]]:
    """What a run wants to know of its current version and does not."""
    config, version = rooms.config.eval, rooms.registry.current
    kinds = (
        (config.every, rooms.evaluated, evaluate),
        (config.exploitability.every, rooms.measured, measure),
    )
    return [find for every, last, find in kinds if every and last < version]
