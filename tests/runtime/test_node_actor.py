"""An actor that loses its node: others play its games identically until it has a new place."""

import asyncio
from contextlib import aclosing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError, ObjectLostError, RayActorError

from tests.helpers.models import random_adapter, tiny_model
from tests.helpers.mortal import Mortal, config_of, content, group
from unstable.config import RunConfig, RunFailedError
from unstable.models.adapters import write_adapter
from unstable.planning.machine import Placement
from unstable.records.folder import RunFolder
from unstable.runtime import actors as actors_module
from unstable.runtime import heartbeat, node_actor
from unstable.runtime.node_actor import NodeActor
from unstable.runtime.placement import NodePlace
from unstable.types import PlayedGame, PlayerId
from unstable.types.processes import Waits


class Nodes:
    """A crew of two nodes, one of which may leave."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self.waits, self.said = Waits(), list[str]()
        self.say = self.said.append
        self.gone: set[str] = set()
        self.files = SimpleNamespace(
            give=self._give, config_at=lambda _: config, folder_at=lambda _: folder
        )
        self.actors: list[NodeActor] = []
        for index, name in enumerate(("a", "b")):
            self.actors.append(NodeActor(config, folder, index, self.place(name), self))  # type: ignore[arg-type]

    def place(self, name: str) -> NodePlace:
        node: Any = SimpleNamespace(name=name, is_drivers=name == "a")
        return NodePlace(Placement(name), node, None, 0)

    async def _give(self, *_: object) -> None:
        pass

    async def has(self, place: NodePlace | None) -> bool:
        return place is not None and place.node.name not in self.gone

    def withdraw(self, actor: NodeActor) -> None:
        actor.place = None
        self.said.append(f"{actor.name} lost")

    async def host(self) -> NodeActor:
        return next(actor for actor in self.actors if not actor.is_lost)

    async def start(self) -> None:
        await asyncio.gather(*(actor.start() for actor in self.actors))

    async def close(self) -> None:
        await asyncio.gather(*(actor.close() for actor in self.actors))


@pytest.fixture(autouse=True)
def mortal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mortal, "dies_after", [])
    monkeypatch.setattr(actors_module, "Process", Mortal)
    monkeypatch.setattr(node_actor, "Process", Mortal)


async def begin(nodes: Nodes) -> None:
    """Publish the version that games name."""
    version = PlayerId.policy(0)
    adapter = random_adapter(tiny_model(), version.name, seed=0)
    await asyncio.gather(*(actor.publish(version, adapter) for actor in nodes.actors))


async def rounds(nodes: Nodes, lost_in: int | None, back_in: int | None) -> list[list[Any]]:
    """Play three rounds on both actors; node b leaves after three games of one, and returns."""
    calls: list[list[Any]] = []
    await begin(nodes)
    for number in range(3):
        if number == lost_in:
            nodes.gone.add("b")
            process: Any = nodes.actors[1]._process
            process.left = 3
        if number == back_in:
            nodes.gone.clear()
            await nodes.actors[1].settle(nodes.place("b"))

        async def played(index: int, number: int = number) -> list[Any]:
            specs = [s for n in range(8) for s in group(1000 * index + 100 * number + 2 * n, 2)]
            lists = [each async for each in nodes.actors[index].play_round(specs, 20)]
            return [game for ended in lists for game in ended.games]

        parts = await asyncio.gather(played(0), played(1))
        games = [each for part in parts for each in part if isinstance(each, PlayedGame)]
        assert len({each.spec.game_id for each in games}) == len(games) == sum(map(len, parts))
        calls.append(sorted(games, key=lambda each: each.spec.game_id))
    return calls


@pytest.mark.parametrize(("lost_in", "back_in"), [(0, None), (1, None), (0, 2), (1, 2)])
async def test_lost_actors_share_is_replayed_identically(
    lost_in: int, back_in: int | None, tiny_folder: Path, tmp_path: Path
) -> None:
    config, folder = config_of(tiny_folder), RunFolder(tmp_path)
    whole = Nodes(config, folder)
    await whole.start()
    expected = await rounds(whole, None, None)
    nodes = Nodes(config, folder)
    await nodes.start()
    assert content(await rounds(nodes, lost_in, back_in)) == content(expected)
    back = [] if back_in is None else ["actor-1 runs on b"]
    assert nodes.said == ["actor-1 lost", *back]
    assert [await a.state() for a in nodes.actors] == [await a.state() for a in whole.actors]
    await nodes.close()
    await whole.close()


async def test_lost_actors_games_are_played_once(tiny_folder: Path, tmp_path: Path) -> None:
    nodes = Nodes(config_of(tiny_folder, loop={"mode": "async"}), RunFolder(tmp_path))
    await nodes.start()
    calls = await rounds(nodes, 1, None)
    for number, games in enumerate(calls):
        begun = {each.spec.game_id - each.spec.member for each in games}
        whole = {first + member for first in begun for member in (0, 1)}
        assert {each.spec.game_id for each in games} == whole
        assert {first // 1000 for first in begun} == {0, 1}, number
    waiting = asyncio.create_task(nodes.actors[1].present())
    await asyncio.sleep(0.05)
    assert not waiting.done(), "a lost actor begins no games"
    await nodes.actors[1].settle(nodes.place("c"))
    await asyncio.wait_for(waiting, 1)
    await nodes.close()


async def test_another_actor_plays_a_lost_actors_games(tiny_folder: Path, tmp_path: Path) -> None:
    """A host that dies meanwhile is restarted and plays the remaining games."""
    nodes = Nodes(config_of(tiny_folder, loop={"mode": "async"}), RunFolder(tmp_path))
    await nodes.start()
    await begin(nodes)
    lost, host = nodes.actors[1], nodes.actors[0]
    nodes.gone.add("b")
    first: Any = lost._process
    second: Any = host._process
    first.left, second.left = 3, 4
    lost.deal([spec for n in range(8) for spec in group(2 * n, 2)])
    found: list[int] = []
    async with aclosing(lost.play_on()) as lists:
        async for ended in lists:
            found += [each.spec.game_id for each in ended.games]
            if len(found) == 16:
                assert lost.is_lost and host._process is not second
                lost.deal(group(100, 2))  # by a dealer that waited at the gate
            if len(found) == 18:
                nodes.gone.clear()
                await lost.settle(nodes.place("b"))
                lost.deal(group(200, 2))
            if len(found) == 20:
                break
    assert sorted(found) == [*range(16), 100, 101, 200, 201]
    await nodes.close()


async def test_returning_actor_gets_all_versions(tiny_folder: Path, tmp_path: Path) -> None:
    """The newest comes from memory, earlier ones from the driver's checkpoints."""
    config, folder = config_of(tiny_folder), RunFolder(tmp_path)
    nodes = Nodes(config, folder)
    await nodes.start()
    lost = nodes.actors[1]
    nodes.gone.add("b")
    process: Any = lost._process
    process.left = 0
    versions = [PlayerId.policy(number) for number in range(3)]
    for number, version in enumerate(versions):
        adapter = random_adapter(tiny_model(), version.name, seed=number)
        await asyncio.gather(*(actor.publish(version, adapter) for actor in nodes.actors))
        folder.checkpoint(number).mkdir(parents=True)
        write_adapter(adapter, folder.checkpoint(number))
    await asyncio.gather(*(actor.announce(versions[2]) for actor in nodes.actors))
    await asyncio.gather(*(actor.retire(versions[0]) for actor in nodes.actors))
    assert lost.is_lost and (await lost.stats())["games_in_flight"] == 0
    await lost.settle(nodes.place("a"))
    process = lost._process
    named = {each.name for each in versions[1:]}
    assert set(process._actor.engine._lora.versions) == {None, *named}
    await nodes.close()


async def test_adapter_lost_with_its_node_is_read_from_checkpoint(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_actor, "LOOK_S", 0.01)
    config, folder = config_of(tiny_folder), RunFolder(tmp_path)
    nodes = Nodes(config, folder)
    await nodes.start()
    version = PlayerId.policy(0)
    adapter = random_adapter(tiny_model(), version.name, seed=0)
    process: Any = nodes.actors[0]._process
    call = process.call

    async def losing(method: str, *arguments: object) -> Any:
        if method == "publish" and arguments[1] == "gone":
            raise ObjectLostError("00", None, "")
        return await call(method, *arguments)

    process.call = losing
    publishing = asyncio.create_task(nodes.actors[0].publish(version, "gone"))
    await asyncio.sleep(0.1)
    assert not publishing.done()
    folder.checkpoint(0).mkdir(parents=True)
    write_adapter(adapter, folder.checkpoint(0))
    await asyncio.wait_for(publishing, 10)
    assert version.name in process._actor.engine._lora.versions
    await nodes.close()


@pytest.mark.parametrize(("refuses", "deaths"), [(2, 0), (10**9, 1)])
@pytest.mark.fault("an actor is unreachable")
async def test_unreachable_actor_is_awaited_before_it_counts_as_dead(
    refuses: int, deaths: int, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "PAUSE_S", 0.01)
    monkeypatch.setattr(heartbeat, "UNREACHED_S", 0.2)
    nodes = Nodes(config_of(tiny_folder), RunFolder(tmp_path))
    await nodes.start()
    actor = nodes.actors[0]
    process: Any = actor._process
    call, left = process.call, [refuses]

    async def unreachable(method: str, *arguments: object) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise ActorUnavailableError("cut off", None)
        return await call(method, *arguments)

    process.call = unreachable
    assert (await actor.stats())["games"] == 0
    assert (actor._process is process) == (deaths == 0)
    assert len(actor._deaths) == deaths
    await nodes.close()


async def test_deaths_are_counted_per_hour(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(actors_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    actor = Nodes(config_of(tiny_folder), RunFolder(tmp_path)).actors[0]
    for _ in range(9):
        actor._count(RayActorError())
        clock[0] += actors_module.WITHIN_S / 3 + 1
    with pytest.raises(RunFailedError, match="died 4 times within an hour"):
        for _ in range(4):
            actor._count(RayActorError())
