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
from unstable.records.files import json_line, write_whole
from unstable.records.games import Recorded, read_games, read_spec, spec_record
from unstable.rooms import Rooms
from unstable.types import Trajectory

State = dict[str, Any]


async def of_actors(rooms: Rooms) -> list[State]:
    """What each actor has to keep."""
    return await asyncio.gather(*(actor.state() for actor in rooms.actors))


def keep(rooms: Rooms, actors: Sequence[State]) -> None:
    """Write down, at once, what the run needs in order to go on from its current version.

    Raises `RunFailedError` where it cannot be written: no later version could be, either.
    """
    version = rooms.registry.current
    dealt = [*rooms.in_flight.values(), *rooms.router.ahead(version)]
    state = {
        "version": version,
        "settled": rooms.settled,
        "evaluated": rooms.evaluated,
        "measured": rooms.measured,
        "first_scores": named(rooms.config, rooms.first_scores),
        "first_payoffs": named(rooms.config, rooms.first_payoffs),
        "failures": rooms.failures,
        "published": sorted(rooms.published),
        "registry": rooms.registry.state(),
        "schedule": rooms.schedule.state(),
        "guard": rooms.guard.state(),
        "buffer": rooms.buffer.state(),
        "oldest": rooms.buffer.oldest(version),
        "in_flight": [spec_record(spec) for spec in dealt],
        "tracker": rooms.tracker.state(),
        "actors": list(actors),
        "marks": rooms.folder.marks(version),
    }
    try:
        write_whole(rooms.folder.state(version), json_line(state))
    except OSError as error:
        raise RunFailedError(
            f"the state of version {version} cannot be written ({error.strerror}); make room for "
            f"it; then: unstable train --resume {rooms.folder.root}"
        ) from error


async def restore(rooms: Rooms, state: Mapping[str, Any]) -> None:
    """Make of new rooms those that `keep` has written down; the learner has its version already."""
    version = state["version"]
    rooms.registry.restore(state["registry"])
    rooms.schedule.restore(state["schedule"])
    rooms.guard.restore(state["guard"])
    rooms.tracker.name_best(rooms.guard.best)
    rooms.tracker.restore(state["tracker"])
    rooms.settled, rooms.failures = state["settled"], state["failures"]
    rooms.evaluated, rooms.measured = state["evaluated"], state["measured"]
    rooms.first_scores = numbered(rooms.config, state["first_scores"])
    rooms.first_payoffs = numbered(rooms.config, state.get("first_payoffs", ()))
    if state["first_scores"]:
        _say_pairs(rooms)
    for published in state["published"]:  # the newest last
        await asyncio.gather(*(actor.publish(published) for actor in rooms.actors))
        rooms.published.add(published)
    if len(state["actors"]) == len(rooms.actors):
        kept = zip(rooms.actors, state["actors"], strict=True)
        await asyncio.gather(*(actor.restore(own) for actor, own in kept))
    if lost := _fill(rooms, state):
        rooms.tracker.print(f"{lost} groups of the buffer are not on file whole, and left out")
    if rooms.config.loop.mode == "async":
        rooms.in_flight = {}
        _go_on(rooms, state, version)


def _say_pairs(rooms: Rooms) -> None:
    found, of = len(rooms.first_scores), len(evaluation_games(rooms.config, version=0))
    if found < of:
        line = f"gains are of {found} of {of} games: version 0 has not played the rest"
        rooms.tracker.print(line)


def _fill(rooms: Rooms, state: Mapping[str, Any]) -> int:
    """Put back into the buffer what it held; returns how many groups are not on file whole."""
    held = state["buffer"]
    trajectories = [places for _, *_, places in (*held["groups"], *held["waiting"])]
    needed = {game for places in trajectories for game, _ in places}
    found: dict[tuple[int, int], Trajectory] = {}
    for version in range(state["oldest"], state["version"] + 1) if needed else ():
        for recorded in read_games(rooms.folder.games("train", version)):
            if needed & {game.spec.game_id for game in recorded.result.games}:
                own = rooms.rewards.recorded(*recorded)
                found |= {(each.game_id, each.seat): each for each in own}
    return rooms.buffer.restore(held, found.get)


def _go_on(rooms: Rooms, state: Mapping[str, Any], version: int) -> None:
    """Let games count that ended after the state was taken, and deal the others again."""
    path = rooms.folder.games("train", version)
    mark = state["marks"].get(rooms.folder.relative(path), 0)
    ended: list[Recorded] = list(read_games(path, mark))
    left = {row["game"]: read_spec(row) for row in state["in_flight"]}
    last = max((each.result.spec.game_id for each in ended), default=-1)
    while rooms.schedule.next_game <= last:
        drawn = rooms.schedule.draw(version, rooms.registry.past())
        left |= {spec.game_id: spec for spec in drawn}
    for recorded in ended:
        result, trajectories = recorded.result, rooms.rewards.recorded(*recorded)
        left.pop(result.spec.game_id, None)
        rooms.count(result)
        rooms.tracker.add_again(result, trajectories)
        rooms.admit(result, trajectories)
    rooms.router.deal_first(left.values())
