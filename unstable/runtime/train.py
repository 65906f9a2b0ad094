"""A training run, from a config to its folder."""

import asyncio

from unstable.buffers.buffer import Buffer
from unstable.config import RunConfig
from unstable.league.guard import Guard
from unstable.league.ratings import Registry
from unstable.league.routing import Router
from unstable.league.schedule import Schedule
from unstable.loop import train as run_loop
from unstable.models.base import model_path
from unstable.planning.plan import Plan
from unstable.records.folder import RunFolder
from unstable.rewards.terms import Rewards
from unstable.rooms import Rooms
from unstable.runtime.logs import setup_logging
from unstable.runtime.prepare import check, opponents_of, prepare, show_plan
from unstable.runtime.session import (
    failures_logged,
    make_folder,
    removed_if_empty,
    terminated_like_interrupted,
)
from unstable.tracking.tracker import Tracker
from unstable.types import PlayerId


def train(config: RunConfig) -> RunFolder:
    """Run a whole training; returns its folder.

    Raises `ConfigError` for a user's mistake, before any model is loaded where that can be, and
    `RunFailedError` for whatever ended the run otherwise. An interrupt leaves a folder that is
    whole up to the last version. In a notebook, call it in a thread: it runs its own event loop.
    """
    check(config)
    resolved = prepare(config)
    show_plan(resolved)
    config = resolved.config
    folder = make_folder(config)
    setup_logging(folder, "loop")
    model_path(config.model)  # the embedded weights are unpacked once, before many processes ask
    tracker = Tracker(config, folder, device=resolved.machine.summary)
    reason = "failed"
    try:
        with (
            tracker.kept_up(),
            removed_if_empty(folder),
            terminated_like_interrupted(),
            failures_logged(folder.log("loop")),
        ):
            reason = asyncio.run(_train(config, resolved.plan, folder, tracker))
    except KeyboardInterrupt:
        reason = "interrupted"
        raise
    finally:
        if folder.root.is_dir():
            tracker.finish(reason)
        tracker.close()
    return folder


async def _train(config: RunConfig, plan: Plan, folder: RunFolder, tracker: Tracker) -> str:
    from unstable.runtime.processes import processes  # Ray takes a second

    async with processes(config, plan, folder, tracker.phase) as (actors, learner):
        schedule = Schedule(config)
        rooms = Rooms(
            config=config,
            folder=folder,
            actors=actors,
            learner=learner,
            buffer=make_buffer(config),
            rewards=Rewards(config.buffer.rewards),
            registry=make_registry(config),
            schedule=schedule,
            router=Router(config, schedule, len(actors)),
            guard=Guard(config),
            tracker=tracker,
        )
        return await run_loop(rooms)


def make_buffer(config: RunConfig) -> Buffer:
    """The buffer of a run."""
    assert isinstance(config.buffer.capacity, int), "planning resolves auto"
    batch_size, groups = config.learner.batch_size, config.groups
    return Buffer(
        config.buffer.capacity,
        batch_size,
        config.buffer.max_staleness,
        groups.max_refills * batch_size if groups.drop_tied else None,
    )


def make_registry(config: RunConfig) -> Registry:
    """The registry of a run; its anchor is the first opponent that is a program of fixed skill."""
    opponents = opponents_of(config)
    programs = [PlayerId(name) for name, opponent in opponents.items() if opponent.is_program]
    anchor = programs[0] if programs else None
    return Registry([PlayerId(name) for name in opponents], anchor, config.opponents.pool_size)
