"""State of a run as a value: saved with each version, and restored on a resume.

The state names the buffer's trajectories, which are read from the games' files. In synchronous play
the state is taken between two rounds, and an interrupted round is replayed, bit for bit. In
asynchronous play games continue meanwhile: a resume counts recorded games that ended later, and
deals the others again from their seeds.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, NonNegativeInt, PlainSerializer, PlainValidator, ValidationError

from unstable.buffers.buffer import BufferState
from unstable.config import RunFailedError
from unstable.league.curriculum import CurriculumState
from unstable.league.evaluation import evaluation_games, named, numbered
from unstable.league.guard import GuardState
from unstable.league.past import PastState
from unstable.league.ratings import RegistryState
from unstable.league.series import ScheduleState
from unstable.loop.context import HELD_OUT_LOSS, Context
from unstable.loop.ended import Ended
from unstable.records.files import json_line, plain, write_whole
from unstable.records.games import read_games
from unstable.records.reading import Skipped, as_record, read_rows
from unstable.records.text import command_line
from unstable.tracking.tracker import TrackerState
from unstable.types import ActorState, GameSpec, PackedTrajectory, PlayerId, Trajectory


def _read_spec(row: Any) -> GameSpec:
    return row if isinstance(row, GameSpec) else as_record(row, GameSpec)


Spec = Annotated[GameSpec, PlainValidator(_read_spec), PlainSerializer(plain)]


class RunState(BaseModel):
    """All that a run needs to resume from its current version, except the learner's checkpoint."""

    version: NonNegativeInt
    finalized: bool
    evaluated: int
    measured: int
    evaluations: list[NonNegativeInt]  # versions whose evaluation has not ended
    first_scores: list[tuple[str, float]]
    first_payoffs: list[tuple[str, float]]
    failures: NonNegativeInt
    published: list[str]
    registry: RegistryState
    past: PastState
    schedule: ScheduleState
    curriculum: CurriculumState
    guard: GuardState
    buffer: BufferState
    oldest: NonNegativeInt  # version among the buffer's samples
    in_flight: list[NonNegativeInt]  # games dealt or queued, which the schedule can redraw
    old_in_flight: list[Spec]  # games too old for the schedule to redraw
    tracker: TrackerState
    actors: list[ActorState]
    marks: dict[str, NonNegativeInt]  # bytes of each append-only file


def parse(text: bytes, version: int) -> RunState | None:
    """Return the state of a run at `version` from a file's content; None if it is anything else."""
    try:
        state = RunState.model_validate_json(text, strict=True)
    except ValidationError:
        return None
    if max(state.in_flight, default=-1) >= state.schedule.now.next_game:
        return None
    newest = max((PlayerId.parse(name).version or 0 for name in state.registry.ratings), default=-1)
    return state if state.version == newest == version else None


async def actor_states(context: Context) -> list[ActorState]:
    """Return the state of each actor."""
    return await asyncio.gather(*(actor.state() for actor in context.actors))


def save(context: Context, actors: Sequence[ActorState]) -> None:
    """Write the state that the run needs to resume from its current version, atomically.

    Raises `RunFailedError` if the file cannot be written, since no later version could be either.
    """
    version = context.version
    unfinished = [*context.in_flight.values(), *context.schedule.ahead(context.current)]
    oldest = context.schedule.oldest_again
    in_flight = [spec.game_id for spec in unfinished if spec.game_id >= oldest]
    context.schedule.forget(min(in_flight, default=None))
    state = RunState.model_construct(
        version=version,
        finalized=context.versions.finalized,
        evaluated=context.versions.evaluated,
        measured=context.versions.measured,
        evaluations=context.unevaluated,
        first_scores=named(context.config, context.first_scores),
        first_payoffs=named(context.config, context.first_payoffs),
        failures=context.failures,
        published=sorted(player.name for player in context.versions.published),
        registry=context.registry.state(),
        past=context.past_results.state(),
        schedule=context.schedule.state(),
        curriculum=context.curriculum.state(),
        guard=context.guard.state(),
        buffer=context.buffer.state(version),
        oldest=context.buffer.oldest(version),
        in_flight=in_flight,
        old_in_flight=[spec for spec in unfinished if spec.game_id < oldest],
        tracker=context.tracker.state(),
        actors=list(actors),
        marks=context.folder.marks(version),
    )
    try:
        write_whole(context.folder.state(version), json_line(state))
    except OSError as error:
        raise RunFailedError(
            f"the state of version {version} cannot be written ({error.strerror}); free disk "
            f"space; then: {command_line('unstable', 'train', '--resume', context.folder.root)}"
        ) from error


async def restore(context: Context, state: RunState) -> None:
    """Restore what `save` has written; the learner must have loaded its version already."""
    context.registry.restore(state.registry)
    context.past_results.restore(state.past)
    context.schedule.restore(state.schedule)
    context.curriculum.restore(state.curriculum)
    context.guard.restore(state.guard)
    context.tracker.name_best(context.guard.best)
    context.tracker.restore(state.tracker)
    context.versions.finalized, context.failures = state.finalized, state.failures
    context.versions.evaluated, context.versions.measured = state.evaluated, state.measured
    context.versions.trained, context.evaluations.items = state.version, list(state.evaluations)
    context.first_scores = numbered(context.config, state.first_scores)
    context.first_payoffs = numbered(context.config, state.first_payoffs)
    known = ((row["version"], row.get(HELD_OUT_LOSS)) for row in read_rows(context.folder.metrics))
    context.held_out_losses = {version: loss for version, loss in known if loss is not None}
    if state.first_scores:
        _print_pairs(context)
    context.versions.published = set(map(PlayerId.parse, state.published))
    for player in sorted(context.versions.published, key=lambda player: player.version or 0):
        await asyncio.gather(*(actor.publish(player) for actor in context.actors))
    await asyncio.gather(*(actor.announce(context.current) for actor in context.actors))
    if len(state.actors) == len(context.actors):
        kept = zip(context.actors, state.actors, strict=True)
        await asyncio.gather(*(actor.restore(own) for actor, own in kept))
    skipped = Skipped()
    held = {
        place: PackedTrajectory.of(each)
        for place, each in _recorded(context, state, skipped).items()
    }
    if lost := context.buffer.restore(state.buffer, held):
        context.tracker.print(f"dropped {lost} groups of the buffer: recorded games missing")
    if context.config.loop.mode == "async":
        context.in_flight = {}
        _go_on(context, state, skipped)
    if skipped:
        context.tracker.print(skipped.line)


def _print_pairs(context: Context) -> None:
    found, of = len(context.first_scores), len(evaluation_games(context.config, version=0))
    if found < of:
        line = f"gains cover {found} of {of} games: version 0 did not play the others"
        context.tracker.print(line)


def _recorded(
    context: Context, state: RunState, skipped: Skipped
) -> Mapping[tuple[int, int], Trajectory]:
    """Return the buffer's trajectories by (game, seat), as far as the games' files have them."""
    groups = [places for _, places in state.buffer.groups]
    groups += [places for *_, places in state.buffer.waiting]
    needed = {game for places in groups for game, _ in places}
    found: dict[tuple[int, int], Trajectory] = {}
    for version in range(state.oldest, state.version + 1) if needed else ():
        for recorded in read_games(context.folder.games("train", version), skipped):
            if needed & {game.spec.game_id for game in recorded.games}:
                own = context.rewards.recorded(recorded)
                found |= {(each.game_id, each.seat): each for each in own}
    return found


def _go_on(context: Context, state: RunState, skipped: Skipped) -> None:
    """Count games that ended after the state was taken, and deal the unfinished ones again."""
    path = context.folder.games("train", state.version)
    mark = state.marks.get(context.folder.relative(path), 0)
    ended = list(read_games(path, skipped, mark))
    again = context.schedule.drawn_again(set(state.in_flight))
    left = {spec.game_id: spec for spec in (*state.old_in_flight, *again)}
    last = max((each.spec.game_id for each in ended), default=-1)
    while context.schedule.next_game <= last:
        drawn = context.schedule.draw_group(context.current, context.past, context.probabilities)
        left |= {spec.game_id: spec for spec in drawn}
    games = Ended.of(((each, context.rewards.recorded(each)) for each in ended), on_file=True)
    for each in games.finished:
        left.pop(each.spec.game_id, None)
        context.count(each)
    context.tracker.add_again(games.finished, games.play)
    context.guard.count(games.play)
    context.admit(games.finished)
    context.schedule.deal_first(left.values())
