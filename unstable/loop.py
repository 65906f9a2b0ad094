"""The loop: read this page first.

                 ┌─────── opponents: past versions, scripted, endpoints ───────┐
    launch ─► loop ─┬─► collectors ──GameResult──► buffers ──Batch──► learners ─┐
                    │      ▲  ▲                                                 │
                    │      │  └─ GameSpec ── schedule ◄── registry ◄──version───┤
                    │      └──── adapter bytes, by version ◄────────────────────┘
                    └─► tracking  (beside: receives, never sends back)

It keeps games in flight, feeds the buffer, asks the learner for an update, registers and publishes
the new version, evaluates, and tells the tracker. Rooms are handed in as plain callables, so that
the same page runs on Ray actors and, in a test, on objects of this process.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Protocol

from unstable.buffers.buffer import Buffer
from unstable.buffers.rewards import Rewards
from unstable.config import RunConfig
from unstable.evaluation.games import evaluation_games, evaluation_scores
from unstable.folder import RunFolder
from unstable.registry import Registry
from unstable.schedule import Schedule
from unstable.tracking.tracker import Tracker
from unstable.types import (
    Adapter,
    Batch,
    GameFailure,
    GameResult,
    GameSpec,
    Trajectory,
    Update,
    policy_player,
)

Finished = tuple[GameResult, list[Trajectory]]


class Actor(Protocol):
    """A process with an engine that plays."""

    def play(
        self, specs: Sequence[GameSpec], enough: int | None = None
    ) -> AsyncIterator[GameResult | GameFailure]: ...

    async def publish(self, adapter: Adapter) -> None: ...

    async def retire(self, name: str) -> None: ...

    async def stats(self) -> dict[str, float]: ...


class Learner(Protocol):
    """The owner of weights and optimizer."""

    async def update(self, batch: Batch) -> Update: ...

    async def save(self, version: int, run_state: dict[str, Any]) -> Adapter: ...


@dataclass
class Rooms:
    """All that a run consists of; `launch.py` puts it together."""

    config: RunConfig
    folder: RunFolder
    actors: Sequence[Actor]
    learner: Learner
    buffer: Buffer
    rewards: Rewards
    registry: Registry
    schedule: Schedule
    tracker: Tracker
    failures: int = 0
    published: set[int] = field(default_factory=set)
    evaluated: int = -1  # the last version that was
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)  # what the buffer holds


async def train(rooms: Rooms) -> str:
    """Play and learn until `loop.steps` updates are made or `loop.max_time` is over; says which."""
    max_time = rooms.config.loop.max_time
    deadline = math.inf if max_time is None else time.monotonic() + max_time
    await publish(rooms, version=0)
    await evaluate(rooms)
    rooms.tracker.end_update(0)
    play_and_learn = take_turns if rooms.config.loop.mode == "sync" else run_at_once
    await play_and_learn(rooms, deadline)
    if rooms.evaluated < rooms.registry.current and rooms.config.eval.every:
        await evaluate(rooms)
        rooms.tracker.end_update(rooms.registry.current)
    return "all updates made" if is_done(rooms) else "time is up"


def is_done(rooms: Rooms) -> bool:
    return rooms.registry.current >= rooms.config.loop.steps


async def take_turns(rooms: Rooms, deadline: float) -> None:
    """Synchronous: play until a batch is there, finish the games in flight, update, go on."""
    while not is_done(rooms):
        while (batch := rooms.buffer.draw(rooms.registry.current)) is None:
            if time.monotonic() > deadline:
                return
            await play_round(rooms)
        await learn(rooms, batch)


async def play_round(rooms: Rooms) -> None:
    """Play until what the next batch lacks is there, an equal share on each actor.

    A game gives a sample at least, save where an opponent forfeits first: then another round comes.
    """
    version, past = rooms.registry.current, rooms.registry.past()
    ready = rooms.buffer.ready(version)
    share = math.ceil((rooms.config.learner.batch_size - ready) / len(rooms.actors))
    orders = [[rooms.schedule.draw(version, past) for _ in range(share)] for _ in rooms.actors]
    rooms.tracker.phase("playing", ready, rooms.config.learner.batch_size)
    played = await asyncio.gather(
        *(collect(rooms, index, specs, share) for index, specs in enumerate(orders))
    )
    # Ratings and batches depend on the games' order, which must not be a matter of who was faster.
    for finished in sorted(chain(*played), key=lambda finished: finished[0].spec.game_id):
        admit(rooms, finished)


async def run_at_once(rooms: Rooms, deadline: float) -> None:
    """Asynchronous: games are always in flight while updates are made out of what has arrived."""
    in_flight = rooms.config.actors.games_in_flight
    assert isinstance(in_flight, int), "launch resolves auto"
    places = [index for index in range(len(rooms.actors)) for _ in range(in_flight)]
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
    """One game after another; waits while two batches lie ready, which would only grow stale."""
    enough = 2 * rooms.config.learner.batch_size
    while True:
        async with rooms.changed:
            await rooms.changed.wait_for(
                lambda: rooms.buffer.ready(rooms.registry.current) < enough
            )
        spec = rooms.schedule.draw(rooms.registry.current, rooms.registry.past())
        played = await collect(rooms, index, [spec])
        async with rooms.changed:
            for finished in played:
                admit(rooms, finished)
            rooms.changed.notify_all()


async def keep_learning(rooms: Rooms, deadline: float) -> None:
    """One update after another, each as soon as its batch is there."""
    batch_size = rooms.config.learner.batch_size
    while not is_done(rooms):
        rooms.tracker.phase("playing", rooms.buffer.ready(rooms.registry.current), batch_size)
        seconds = None if deadline == math.inf else deadline - time.monotonic()
        try:
            async with asyncio.timeout(seconds), rooms.changed:
                await rooms.changed.wait_for(
                    lambda: rooms.buffer.ready(rooms.registry.current) >= batch_size
                )
                batch = rooms.buffer.draw(rooms.registry.current)
                rooms.changed.notify_all()
        except TimeoutError:
            return
        assert batch is not None
        await learn(rooms, batch)


async def collect(
    rooms: Rooms, index: int, specs: Sequence[GameSpec], enough: int | None = None
) -> list[Finished]:
    """Have one actor play training games; each is on file as soon as it is over."""
    version = rooms.registry.current
    played: list[Finished] = []
    async for result in rooms.actors[index].play(specs, enough):
        if isinstance(result, GameFailure):
            count_failure(rooms, result)
            continue
        trajectories = rooms.rewards.trajectories(result)
        rooms.tracker.add_trajectory(result, trajectories, version, index)
        rooms.tracker.log_actor(index, await rooms.actors[index].stats())
        played.append((result, trajectories))
    return played


def count_failure(rooms: Rooms, failure: GameFailure) -> None:
    """The fault border is a game: its failure is counted, and too many end the run."""
    rooms.tracker.add_failure(failure)
    rooms.failures += 1
    if rooms.failures > rooms.config.loop.max_failures:
        raise RuntimeError(
            f"{rooms.failures} games failed, more than loop.max_failures = "
            f"{rooms.config.loop.max_failures}; the last one: {failure.error}"
        )


def admit(rooms: Rooms, finished: Finished) -> None:
    """Let a finished game count: for ratings, and for the next batch."""
    result, trajectories = finished
    rooms.registry.record(result)
    rooms.buffer.add(result.spec, trajectories)


async def learn(rooms: Rooms, batch: Batch) -> None:
    """One update, from a batch to a version that is published, and evaluated when it is due."""
    rooms.tracker.phase("updating")
    update = await rooms.learner.update(batch)
    rooms.tracker.log_learner(update.metrics)
    rooms.tracker.log_samples(update, batch)
    await publish(rooms, update.version)
    every = rooms.config.eval.every
    if every and (update.version % every == 0 or is_done(rooms)):
        await evaluate(rooms)
    rooms.tracker.log_buffer(rooms.buffer.stats())
    rooms.tracker.log_ratings(rooms.registry.ratings())
    rooms.tracker.end_update(update.version)


async def publish(rooms: Rooms, version: int) -> None:
    """Save a version, hand it to every actor, and only then let games be drawn for it."""
    rooms.tracker.phase("publishing")
    rooms.registry.add(version)
    run_state = {"registry": rooms.registry.state(), "schedule": rooms.schedule.state()}
    adapter = await rooms.learner.save(version, run_state)
    await asyncio.gather(*(actor.publish(adapter) for actor in rooms.actors))
    rooms.registry.current = version
    rooms.published.add(version)
    kept = {version, *rooms.registry.past()}
    for old in rooms.published - kept:
        await asyncio.gather(*(actor.retire(policy_player(old)) for actor in rooms.actors))
    rooms.published &= kept
    rooms.folder.prune(rooms.config.tracking.keep_checkpoints, opponents=kept)


async def evaluate(rooms: Rooms) -> None:
    """Have the current version play its evaluation games, apart from everything that is trained."""
    version = rooms.registry.current
    rooms.evaluated = version
    if not rooms.config.eval.every:
        return
    specs = evaluation_games(rooms.config, version)
    rooms.tracker.phase("evaluating", 0, len(specs))
    played = await asyncio.gather(
        *(
            judge(rooms, index, specs[index :: len(rooms.actors)])
            for index in range(len(rooms.actors))
        )
    )
    results = sorted(chain(*played), key=lambda result: result.spec.game_id)
    for result in results:
        rooms.registry.record(result)
    rooms.tracker.log_evaluation(evaluation_scores(version, results))
    rooms.tracker.log_ratings(rooms.registry.ratings())


async def judge(rooms: Rooms, index: int, specs: Sequence[GameSpec]) -> list[GameResult]:
    """Have one actor play evaluation games."""
    version = rooms.registry.current
    played: list[GameResult] = []
    async for result in rooms.actors[index].play(specs):
        if isinstance(result, GameFailure):
            count_failure(rooms, result)
            continue
        rooms.tracker.add_eval_episode(result, version)
        played.append(result)
    return played
