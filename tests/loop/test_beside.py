"""Publishing and evaluation concurrent with learning in asynchronous play."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.loop import Begin, lines, played
from tests.helpers.resume import weights
from unstable.loop.context import Context
from unstable.loop.state import parse
from unstable.loop.train import train
from unstable.records.reading import read_rows
from unstable.tracking.recording import TrackerState
from unstable.types import GameFailure, GameResult, GameSpec, PackedBatch, Update


def settings(**more: Any) -> dict[str, Any]:
    return {
        "loop": {"mode": "async", "steps": 4},
        "actors": {"games_in_flight": 6},
        "eval": {"every": 2, "games": 4, "opponents": ["random"]},
        **more,
    }


def begun(context: Context) -> list[asyncio.Event]:
    """An event for each update of a run, set as the update begins."""
    events = [asyncio.Event() for _ in range(context.config.loop.steps + 1)]
    update = context.learner.update

    async def noted(batch: PackedBatch) -> Update:
        events[batch.version + 1].set()
        return await update(batch)

    context.learner.update = noted  # type: ignore[method-assign]
    return events


@pytest.mark.parametrize("slow", ["the learner's files", "an actor's adapter"])
async def test_next_update_starts_while_publishing(begin: Begin, slow: str) -> None:
    """Publishing version 1 waits here until update 2 has begun."""
    context = begin(**settings())
    events = begun(context)
    owner: Any = context.learner if slow == "the learner's files" else context.actors[0]
    name = "save" if slow == "the learner's files" else "publish"
    own = getattr(owner, name)

    async def late(version: Any, *adapter: Any) -> None:
        if version in (1, context.player(1)):
            await events[2].wait()
        await own(version, *adapter)

    setattr(owner, name, late)
    async with asyncio.timeout(120):
        assert await train(context) == "all updates made"
    assert [row["version"] for row in read_rows(context.folder.metrics)] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("slow", ["save", "publish"])
async def test_version_is_announced_after_save_and_publish(
    begin: Begin, mode: str, slow: str
) -> None:
    """One of both takes longer here; seats that take the newest version at each turn wait too."""
    changes = settings(loop={"mode": mode, "steps": 3})
    changes["actors"] |= {"policy_refresh": "turn"}
    context = begin(**changes)
    learner, actor, folder = context.learner, context.actors[0], context.folder
    own: dict[str, Any] = {
        "save": learner.save,
        "publish": actor.publish,
        "announce": actor.announce,
    }
    done: list[tuple[str, int]] = []

    async def step(name: str, version: Any, *adapter: Any) -> None:
        number = version if name == "save" else version.version
        if name == slow:
            await asyncio.sleep(0.3)
        assert folder.state(number).is_file() == (name == "announce")
        await own[name](version, *adapter)
        done.append((name, number))

    learner.save = partial(step, "save")  # type: ignore[method-assign]
    actor.publish = partial(step, "publish")  # type: ignore[method-assign]
    actor.announce = partial(step, "announce")  # type: ignore[method-assign]
    assert await train(context) == "all updates made"
    fast = ({"save", "publish"} - {slow}).pop()
    assert done == [(name, number) for number in range(4) for name in (fast, slow, "announce")]
    for purpose, current, path in folder.game_files():
        turns = [turn["sampled"] for game in lines(path) for turn in game["turns"]]
        by = [turn["version"] for turn in turns if turn and turn["version"] is not None]
        assert purpose == "eval" or by and max(by) <= current


async def test_late_checkpoint_is_unaffected_by_later_updates(begin: Begin, tmp_path: Path) -> None:
    """A version's checkpoint does not depend on the updates made while it is written."""
    context = begin(**settings())
    learner, folder = context.learner, context.folder
    batches: list[PackedBatch] = []
    update = learner.update

    async def kept(batch: PackedBatch) -> Update:
        batches.append(batch)
        return await update(batch)

    learner.update = kept  # type: ignore[method-assign]
    await train(context)
    before = weights(folder, 4)
    held = await learner.hold()
    folder.checkpoint(4).rename(tmp_path / "before")
    await update(PackedBatch(4, batches[-1].groups))
    await held.save()
    await (await learner.hold()).save()
    assert weights(folder, 4) == before != weights(folder, 5)
    states = [torch.load(at / "learner.pt") for at in (tmp_path / "before", folder.checkpoint(4))]
    assert str(states[0]) == str(states[1]), "includes the optimizer's moments"


async def test_updates_continue_during_evaluation(begin: Begin) -> None:
    """Version 0's evaluation ends here after update 3 begins, and is recorded under version 0.

    Version 2's evaluation waits for it, and version 4's update waits for version 2's evaluation.
    """
    context = begin(**settings())
    events = begun(context)
    play = context.actors[0].play

    async def late(specs: Sequence[GameSpec]) -> AsyncGenerator[GameResult | GameFailure]:
        players = {seat.player for seat in specs[0].seats}
        if specs[0].purpose == "eval" and context.player(0) in players:
            await events[3].wait()
        async for result in play(specs):
            yield result

    context.actors[0].play = late  # type: ignore[method-assign]
    async with asyncio.timeout(120):
        assert await train(context) == "all updates made"
    rows = read_rows(context.folder.metrics)
    assert [row["version"] for row in rows] == [0, 1, 2, 3, 4]
    gain = "eval/TicTacToe-v0/random/sampled/gain"
    score = "eval/TicTacToe-v0/random/sampled/score"
    assert [row["version"] for row in rows if row.get(score) is not None] == [0, 2, 4]
    assert [row["version"] for row in rows if row.get(gain) is not None] == [2, 4]
    for version in (0, 2, 4):
        games = lines(context.folder.games("eval", version))
        assert sorted(game["game"] for game in games) == [0, 1, 2, 3]
        players = {seat["player"] for game in games for seat in game["seats"]}
        assert players == {f"main@{version}", "random"}
    kept = parse(context.folder.state(4).read_bytes(), 4)
    assert kept is not None and (kept.evaluated, kept.evaluations) == (4, []), "none is pending"
    # The file has a separate row for an evaluation that ended later.
    written = [row["version"] for row in lines(context.folder.metrics)]
    assert sorted(written) == [0, 0, 1, 2, 2, 3, 4, 4] and written != sorted(written)
    assert len(played(context.folder, "eval")) == 12


async def test_figures_of_an_unfinished_evaluation_survive_a_resume(begin: Begin) -> None:
    recording = begin(**settings()).tracker.recording
    recording.add({"eval/x": 0.5}, beside=True)
    saved = TrackerState.model_validate_json(recording.state().model_dump_json())
    recording.end_beside(0)
    recording.restore(saved)
    assert recording.end_beside(0)["eval/x"] == 0.5


@pytest.mark.parametrize("during", ["update 2", "update 1"])
async def test_interrupt_waits_for_begun_updates(begin: Begin, during: str) -> None:
    """An interrupt before or during update 2 waits until begun updates are saved and logged."""
    context = begin(**settings())
    events = begun(context)
    save, said = context.learner.save, ""

    async def interrupted(version: int) -> None:
        nonlocal said
        if version == 1:
            if during == "update 2":
                await events[2].wait()
            said, context.interrupt.wanted = context.interrupt.deferred_by, True
            await asyncio.sleep(0.1)
        await save(version)

    context.learner.save = interrupted  # type: ignore[method-assign]
    async with asyncio.timeout(120):
        with pytest.raises(asyncio.CancelledError):
            await train(context)
    last = int(said.removeprefix("update "))
    assert context.folder.versions()[-1] == last and context.folder.state(last).is_file()
    assert [row["version"] for row in read_rows(context.folder.metrics)] == [*range(last + 1)]
    assert last == 2 or during == "update 1"
