"""The games of a synchronous run are bit-identical, even if an actor dies while it plays."""

import asyncio
import gc
import weakref
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.helpers.models import random_adapter, tiny_model
from tests.helpers.mortal import Mortal, config_of, content, group
from unstable.config import RunConfig
from unstable.models.adapters import write_adapter
from unstable.planning.machine import LOOPBACK, Placement
from unstable.records.folder import RunFolder
from unstable.runtime import actors as actors_module
from unstable.runtime.actors import RemoteActor
from unstable.runtime.memory import until_free
from unstable.types import Adapter, GameResult, PlayedGame, PlayerId, SeatSpec


async def played(
    config: RunConfig, folder: RunFolder, monkeypatch: pytest.MonkeyPatch, *dies_after: int
) -> tuple[list[list[PlayedGame]], list[str]]:
    """Play three rounds on one actor; return its games and the notices for the user."""
    monkeypatch.setattr(Mortal, "dies_after", [*dies_after])
    monkeypatch.setattr(actors_module, "Process", Mortal)
    said: list[str] = []
    actor = RemoteActor(config, folder, 0, Placement(LOOPBACK), say=said.append)
    await actor.start()
    await actor.publish(*version_of(0))
    calls = []
    for call in range(3):
        specs = [spec for n in range(8) for spec in group(100 * call + 2 * n, 2)]
        lists = [each async for each in actor.play_round(specs, 20)]
        games = [each for ended in lists for each in ended.finished]
        assert len(games) == sum(len(ended.games) for ended in lists)
        assert len(games) == sum(ended.play.counts["collect/games"] for ended in lists)
        calls.append(sorted(games, key=lambda each: each.spec.game_id))
    await actor.close()
    return calls, said


@pytest.mark.parametrize("dies_after", [(0,), (3,), (13,), (25, 0, 2)])
@pytest.mark.fault("an actor crashes", "machine out of memory")
async def test_actor_death_changes_no_game_of_a_synchronous_run(
    dies_after: tuple[int, ...], tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deaths before the first game, during a call, or after a call's last game."""
    config, folder = config_of(tiny_folder), RunFolder(tmp_path)
    whole, nothing = await played(config, folder, monkeypatch)
    calls, said = await played(config, folder, monkeypatch, *dies_after)
    assert content(calls) == content(whole)
    assert nothing == []
    assert said == ["actor-0 died and is restarted; its games are replayed" for _ in dies_after]


@pytest.mark.parametrize(
    "changes",
    [
        {"actors": {"num": 1, "games_in_flight": 6, "engine": "vllm"}},
        {"opponents": {"fixed": [{"kind": "python", "target": "tests.helpers.collector:Faulty"}]}},
    ],
)
async def test_unrepeatable_games_are_finished_with_a_notice(
    changes: dict[str, Any], tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tiny_folder, **changes)
    calls, said = await played(config, RunFolder(tmp_path), monkeypatch, 3)
    for results in calls:
        ids = {each.spec.game_id for each in results}
        assert len(ids) == len(results) and {number ^ 1 for number in ids} == ids  # whole groups
    assert said[0].endswith("and may differ from the lost ones")


@pytest.mark.parametrize("dies_after", [(0,), (7,), (1, 0, 12)])
async def test_dealt_games_survive_actor_death_and_play_once(
    dies_after: tuple[int, ...], tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All dealt games are played exactly once, also those dealt while the process is dead."""
    monkeypatch.setattr(Mortal, "dies_after", [*dies_after])
    monkeypatch.setattr(actors_module, "Process", Mortal)
    config = config_of(tiny_folder, loop={"mode": "async"})
    said: list[str] = []
    actor = RemoteActor(config, RunFolder(tmp_path), 0, Placement(LOOPBACK), say=said.append)
    await actor.start()
    await actor.publish(*version_of(0))
    specs = [spec for n in range(15) for spec in group(2 * n, 2)]
    actor.deal(specs[:10])
    found: list[int] = []
    counted = 0
    async with aclosing(actor.play_on()) as lists:
        later = asyncio.get_running_loop().call_later(0.1, actor.deal, specs[10:])
        async for ended in lists:
            found += [each.spec.game_id for each in ended.games]
            counted += ended.play.counts["collect/games"]
            if len(found) >= 30:
                break
    assert later.when() < asyncio.get_running_loop().time()
    assert sorted(found) == [*range(30)] and counted == 30
    assert len(said) == len(dies_after)
    await actor.close()


class Traced(Adapter):
    """An adapter that supports weak references."""


def version_of(number: int) -> tuple[PlayerId, Adapter]:
    player = PlayerId.policy(number)
    made = random_adapter(tiny_model(), player.name, seed=number)
    return player, Traced(name=made.name, weights=made.weights, config=made.config)


def kill(actor: RemoteActor) -> None:
    process: Any = actor._process
    process.left = 0


@pytest.mark.parametrize("dies", ["during its publication", "before its checkpoint"])
async def test_version_without_checkpoint_survives_actor_death(
    dies: str,
    tiny_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A successor restores the newest version from memory, and earlier ones from checkpoints."""
    monkeypatch.setattr(Mortal, "dies_after", [])
    monkeypatch.setattr(actors_module, "Process", Mortal)
    caplog.set_level("ERROR")  # a captured warning would keep a reference to the adapter
    config, folder = config_of(tiny_folder), RunFolder(tmp_path)
    said: list[str] = []
    actor = RemoteActor(config, folder, 0, Placement(LOOPBACK), say=said.append)
    await actor.start()
    (first, held), (second, newest) = version_of(0), version_of(1)
    await actor.publish(first, held)
    folder.checkpoint(0).mkdir(parents=True)
    write_adapter(held, folder.checkpoint(0))
    await actor.announce(first)
    if dies == "during its publication":
        kill(actor)
    await actor.publish(second, newest)
    if dies == "before its checkpoint":
        kill(actor)
    mirrors = [(SeatSpec(player=player, temperature=1.0),) * 2 for player in (first, second)]
    specs = [replace(spec, seats=seats) for spec, seats in zip(group(0, 2), mirrors, strict=True)]
    results = [result async for result in actor.play(specs)]
    assert [type(result) for result in results] == [GameResult] * 2
    assert said == ["actor-0 died and is restarted; its games are replayed"]
    gone = weakref.ref(newest)
    await actor.publish(*version_of(2))
    del newest
    gc.collect()
    assert gone() is None, "an adapter with a checkpoint is not kept in memory"
    await actor.close()


@pytest.mark.parametrize(
    "free, found",
    [([0.1, 0.1, 0.5, 0.9, 0.9], True), ([0.95, 0.95], True), ([], True), ([0.1], False)],
)
async def test_successor_waits_for_gpu_memory(free: list[float], found: bool) -> None:
    looks = iter(free)

    def read(gpus: Sequence[str]) -> list[float]:
        assert gpus == ("0", "1")
        if not free:
            return []
        return [0.97, next(looks, free[-1])]

    wait_s = 60.0 if found else 0.0
    assert await until_free(("0", "1"), 0.9, read, wait_s=wait_s, look_s=0) == found
    assert next(looks, None) is None
