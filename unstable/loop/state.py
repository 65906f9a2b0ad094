"""A run's state as a value: kept with each version, and put back where a run goes on.

What is in the buffer is named there and read again out of the games' files. In synchronous play the
state is taken between two rounds, and a round that was cut off is played again, to the bit. In
asynchronous play games go on meanwhile: those that ended later are on file and count again, the
others are dealt again from their seeds.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from unstable.config import RunFailedError
from unstable.league.deals import named, numbered
from unstable.league.evaluation import evaluation_games
from unstable.loop.context import Context
from unstable.records.files import json_line, write_whole
from unstable.records.games import Recorded, read_games, read_spec, spec_record
from unstable.types import Trajectory

State = dict[str, Any]


async def of_actors(context: Context) -> list[State]:
    """What each actor has to keep."""
    return await asyncio.gather(*(actor.state() for actor in context.actors))


def keep(context: Context, actors: Sequence[State]) -> None:
    """Write down, at once, what the run needs in order to go on from its current version.

    Raises `RunFailedError` where it cannot be written: no later version could be, either.
    """
    version = context.registry.current
    dealt = [*context.in_flight.values(), *context.router.ahead(version)]
    state = {
        "version": version,
        "settled": context.settled,
        "evaluated": context.evaluated,
        "measured": context.measured,
        "first_scores": named(context.config, context.first_scores),
        "first_payoffs": named(context.config, context.first_payoffs),
        "failures": context.failures,
        "published": sorted(context.published),
        "registry": context.registry.state(),
        "schedule": context.schedule.state(),
        "guard": context.guard.state(),
        "buffer": context.buffer.state(),
        "oldest": context.buffer.oldest(version),
        "in_flight": [spec_record(spec) for spec in dealt],
        "tracker": context.tracker.state(),
        "actors": list(actors),
        "marks": context.folder.marks(version),
    }
    try:
        write_whole(context.folder.state(version), json_line(state))
    except OSError as error:
        raise RunFailedError(
            f"the state of version {version} cannot be written ({error.strerror}); make room for "
            f"it; then: unstable train --resume {context.folder.root}"
        ) from error


async def restore(context: Context, state: Mapping[str, Any]) -> None:
    """Put back what `keep` has written down; the learner has its version already."""
    version = state["version"]
    context.registry.restore(state["registry"])
    context.schedule.restore(state["schedule"])
    context.guard.restore(state["guard"])
    context.tracker.name_best(context.guard.best)
    context.tracker.restore(state["tracker"])
    context.settled, context.failures = state["settled"], state["failures"]
    context.evaluated, context.measured = state["evaluated"], state["measured"]
    context.first_scores = numbered(context.config, state["first_scores"])
    context.first_payoffs = numbered(context.config, state.get("first_payoffs", ()))
    if state["first_scores"]:
        _say_pairs(context)
    for published in state["published"]:  # the newest last
        await asyncio.gather(*(actor.publish(published) for actor in context.actors))
        context.published.add(published)
    if len(state["actors"]) == len(context.actors):
        kept = zip(context.actors, state["actors"], strict=True)
        await asyncio.gather(*(actor.restore(own) for actor, own in kept))
    if lost := _fill(context, state):
        context.tracker.print(f"{lost} groups of the buffer are not on file whole, and left out")
    if context.config.loop.mode == "async":
        context.in_flight = {}
        _go_on(context, state, version)


def _say_pairs(context: Context) -> None:
    found, of = len(context.first_scores), len(evaluation_games(context.config, version=0))
    if found < of:
        line = f"gains are of {found} of {of} games: version 0 has not played the rest"
        context.tracker.print(line)


def _fill(context: Context, state: Mapping[str, Any]) -> int:
    """Put back into the buffer what it held; returns how many groups are not on file whole."""
    held = state["buffer"]
    trajectories = [places for _, *_, places in (*held["groups"], *held["waiting"])]
    needed = {game for places in trajectories for game, _ in places}
    found: dict[tuple[int, int], Trajectory] = {}
    for version in range(state["oldest"], state["version"] + 1) if needed else ():
        for recorded in read_games(context.folder.games("train", version)):
            if needed & {game.spec.game_id for game in recorded.result.games}:
                own = context.rewards.recorded(*recorded)
                found |= {(each.game_id, each.seat): each for each in own}
    return context.buffer.restore(held, found.get)


def _go_on(context: Context, state: Mapping[str, Any], version: int) -> None:
    """Let games count that ended after the state was taken, and deal the others again."""
    path = context.folder.games("train", version)
    mark = state["marks"].get(context.folder.relative(path), 0)
    ended: list[Recorded] = list(read_games(path, mark))
    left = {row["game"]: read_spec(row) for row in state["in_flight"]}
    last = max((each.result.spec.game_id for each in ended), default=-1)
    while context.schedule.next_game <= last:
        drawn = context.schedule.draw(version, context.registry.past())
        left |= {spec.game_id: spec for spec in drawn}
    for recorded in ended:
        result, trajectories = recorded.result, context.rewards.recorded(*recorded)
        left.pop(result.spec.game_id, None)
        context.count(result)
        context.tracker.add_again(result, trajectories)
        context.admit(result, trajectories)
    context.router.deal_first(left.values())
