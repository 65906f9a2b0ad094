"""Actors that join a run while it goes on: each gets all versions, and plays from then on."""

import asyncio
from typing import Any

import pytest

from tests.helpers.loop import Begin, make_actor, played
from unstable.loop.context import Context
from unstable.loop.train import train
from unstable.types import PlayerId


def served(context: Context) -> list[set[PlayerId]]:
    """The versions that each actor serves."""
    return [
        {each for each in context.versions.published if each.name in actor.engine._lora.versions}  # type: ignore[attr-defined]
        for actor in context.actors
    ]


@pytest.mark.parametrize("mode", ["sync", "async"])
async def test_joined_actor_plays_and_gets_versions(mode: str, begin: Begin) -> None:
    """An actor that joins while version 1 is published plays and receives every later version."""
    changes: dict[str, Any] = {"loop": {"mode": mode, "steps": 6}, "eval": {"every": 0}}
    context = begin(actors={"games_in_flight": 6}, **changes)
    save = context.learner.save

    async def joined(version: int) -> None:
        if version == 1:
            context.joined.put_nowait(make_actor(context.config, context.folder))
        await save(version)

    context.learner.save = joined  # type: ignore[method-assign]
    async with asyncio.timeout(120):
        await train(context)
    assert len(context.actors) == 2
    assert served(context) == [context.versions.published] * 2
    games = played(context.folder)
    assert {game["actor"] for game in games} == {0, 1}
    assert len({game["game"] for game in games}) == len(games)
    for actor in context.actors:
        await actor.close()  # type: ignore[attr-defined]
