"""Nodes join and leave: where actors start, and whose GPUs a learner gets. Without Ray."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.machines import machine
from tests.helpers.mortal import Mortal, config_of
from unstable.config import RunFailedError
from unstable.planning.machine import Placement
from unstable.records.folder import RunFolder
from unstable.runtime import actors as actors_module
from unstable.runtime import crew as crew_module
from unstable.runtime import node_actor
from unstable.runtime.crew import Crew
from unstable.runtime.nodes import ClusterNode, NodeContents
from unstable.runtime.placement import NodePlace
from unstable.types.processes import Waits


class FakeNode(ClusterNode):
    """A node that is alive while `there` is true."""

    there = True

    async def lives(self) -> bool:
        return self.there

    async def give(self, *_: object) -> None:
        pass


def node(name: str, cards: int = 0, *, drivers: bool = False) -> FakeNode:
    own = machine(cards, cores=2, node=name)
    found = NodeContents(own, "3.11", "a", "token", "", {})
    return FakeNode(name, f"id {name}", found, own, drivers)


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mortal, "dies_after", [])
    monkeypatch.setattr(actors_module, "Process", Mortal)
    monkeypatch.setattr(node_actor, "Process", Mortal)
    monkeypatch.setattr(crew_module, "free", lambda _: None)
    monkeypatch.setattr(crew_module, "reserve", reserve)
    monkeypatch.setattr(crew_module, "look", lambda _: node("driver").found)


def reserve(placements: Sequence[Placement], nodes: dict[str, ClusterNode]) -> list[NodePlace]:
    return [NodePlace(each, nodes[each.node], object(), len(each.gpus)) for each in placements]


def crew_of(
    tiny_folder: Path, tmp_path: Path, *nodes: ClusterNode, grows: bool = False, **changes: Any
) -> tuple[Crew, list[str]]:
    said: list[str] = []
    config = config_of(tiny_folder, **changes)
    folder = RunFolder(tmp_path)
    return Crew(config, folder, nodes, Waits(), said.append, grows=grows), said


def processors(monkeypatch: pytest.MonkeyPatch, **left: int) -> None:
    free = {f"id {name}": {"CPU": float(count)} for name, count in left.items()}
    monkeypatch.setattr(crew_module, "free_resources", lambda: free)


async def test_learner_restarts_on_its_node_if_alive(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew, _ = crew_of(tiny_folder, tmp_path, node("a"), node("driver", drivers=True))
    processors(monkeypatch)
    old = crew.reserve([Placement("a")])
    assert await crew.learner_places(old) == old


@pytest.mark.parametrize(("left", "evicted"), [(1, 0), (0, 1)])
@pytest.mark.fault("a cluster node leaves")
async def test_learner_of_lost_node_moves_to_the_drivers_node(
    left: int, evicted: int, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = node("a")
    crew, said = crew_of(tiny_folder, tmp_path, gone, node("b"), node("driver", drivers=True))
    processors(monkeypatch, driver=left)
    actors = crew.reserve([Placement("b"), Placement("driver"), Placement("driver")])
    (old,) = crew.reserve([Placement("a")])
    gone.there = False
    (new,) = await crew.learner_places([old])
    assert new.placement == Placement("driver") and said == ["node a left"]
    assert len([place for place in actors if await crew.has(place)]) == 3 - evicted


async def test_learner_takes_spare_gpus_first_and_keeps_live_ranks(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, other = node("a", 2), node("b", 3)
    crew, _ = crew_of(tiny_folder, tmp_path, gone, other)
    processors(monkeypatch)
    playing = crew.reserve([Placement("b", ("0",)), Placement("b", ("1",))])
    crew._spare += (spare := crew.reserve([Placement("b", ("2",))]))
    old = crew.reserve([Placement("b", ("9",)), Placement("a", ("0",))])
    gone.there = False
    new = await crew.learner_places(old)
    assert [place.placement for place in new] == [Placement("b", ("9",)), Placement("b", ("2",))]
    assert not await crew.has(spare[0])
    assert all([await crew.has(place) for place in playing])
    other.there = False
    with pytest.raises(RunFailedError, match="the learner's node left, and no other node has room"):
        await crew.learner_places(new)


def comes(monkeypatch: pytest.MonkeyPatch, made: ClusterNode) -> dict[str, Any]:
    monkeypatch.setattr(crew_module, "found_at", lambda *_: iter([made]))
    return {"NodeID": made.id}


async def test_new_node_gets_lost_actors_first_then_new_ones(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = node("a")
    here = node("driver", drivers=True)
    crew, said = crew_of(tiny_folder, tmp_path, gone, here, grows=True, loop={"mode": "async"})
    own = [crew.actor(place) for place in crew.reserve([Placement("a"), Placement("driver")])]
    await asyncio.gather(*(actor.start() for actor in own))
    crew.actors += own
    probed: list[str] = []

    async def probe(actor: Any) -> None:
        probed.append(actor.name)

    crew.probe = probe
    gone.there = False
    process: Any = own[0]._process
    process.left = 0
    assert await own[0].stats() is not None  # detects the death and the loss of the node
    assert own[0].is_lost and await crew.host() is own[1]
    await crew._take_in(comes(monkeypatch, node("b")))
    assert not own[0].is_lost and own[0].place is not None
    assert own[0].place.node.name == "b"
    joined = crew.joined.get_nowait()
    assert probed == ["actor-2"] and crew.joined.empty()
    assert said == [
        "node a left",
        "actor-0 lost its place on a; its games are reassigned",
        "node b joined, with room for 2 actors",
        "actor-0 runs on b",
        "actor-2 runs on b",
    ]
    await asyncio.gather(*(actor.close() for actor in [*own, joined]))
    await crew.close()


async def test_different_new_node_is_rejected(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crew, said = crew_of(tiny_folder, tmp_path, node("driver", drivers=True), grows=True)
    other = node("b")
    other.found = other.found._replace(source="b")
    await crew._take_in(comes(monkeypatch, other))
    assert len(said) == 1 and "node b: unstable b differs from the driver's" in said[0]
    assert crew.joined.empty()


async def test_run_without_actors_waits_then_fails(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew_module, "EVERY_S", 0.01)
    loop = {"mode": "async", "start_timeout": 0.1}
    crew, _ = crew_of(tiny_folder, tmp_path, node("driver", drivers=True), loop=loop)
    with pytest.raises(RunFailedError, match=r"no actor left.*start_timeout = 0\.1 s"):
        await crew.host()
    later = SimpleNamespace(is_lost=False, load=0)
    monkeypatch.setattr(Crew, "_own", [later])
    assert await crew.host() is later
