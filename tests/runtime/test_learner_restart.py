"""A learner that dies on a cluster restarts and continues identically."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayActorError

from tests.helpers.learners import packed_batch, save_model, unlike_batch
from unstable.config import ModelConfig, RunConfig, RunFailedError
from unstable.loop.protocols import HeldVersion
from unstable.planning.machine import Placement
from unstable.records.folder import RunFolder
from unstable.runtime import learner_ranks
from unstable.runtime.learner_ranks import Journal, RemoteLearner
from unstable.runtime.local import LocalLearner
from unstable.runtime.nodes import NodeAgent
from unstable.runtime.placement import NodePlace

UPDATES = 3


class Mortal:
    """A rank in this process, which dies in or after the calls with the numbers in `deaths`."""

    deaths: set[int] = set()
    asked: list[str] = []
    after: bool = False

    def __init__(self, _: type, arguments: tuple[Any, ...], *__: Any, **___: Any) -> None:
        self._config, self._folder, *_rest = arguments
        self._dead = False
        options = SimpleNamespace(remote=self._adapter)
        self.actor = SimpleNamespace(adapter=SimpleNamespace(options=lambda **_: options))

    async def start(self, _: object) -> int:
        self._learner = LocalLearner(self._config, self._folder)
        return 1

    def kill(self) -> None:
        self._dead = True

    async def call(self, method: str, *arguments: object, group: str | None = None) -> Any:
        if self._dead:
            raise RayActorError
        self.asked.append(method)
        dies = len(self.asked) - 1 in self.deaths
        if dies and not self.after:
            self._dead = True
            raise RayActorError
        answer = await getattr(self._learner, method)(*arguments)
        if dies:
            self._dead = True
            raise RayActorError
        return answer

    def _adapter(self, version: int) -> tuple[Any, Any]:
        found = asyncio.ensure_future(self.call("adapter", version))

        async def there() -> None:
            await found

        return there(), found


class Agent:
    """A node's agent, in this process."""

    def __init__(self, root: Path) -> None:
        self._agent = NodeAgent()
        self._agent._root = root

    def __getattr__(self, method: str) -> Any:
        async def call(*arguments: Any) -> Any:
            return getattr(self._agent, method)(*arguments)

        return SimpleNamespace(remote=call)


class Crew:
    """One node, which is the driver's or shares no disk with it."""

    def __init__(self, config: RunConfig, folder: RunFolder, root: Path | None) -> None:
        self.said: list[str] = []
        self.say = self.said.append
        own = folder if root is None else RunFolder(root)
        agent = None if root is None else Agent(root)
        node: Any = SimpleNamespace(name="a", id="1", is_drivers=root is None, agent=agent)
        self.places = [NodePlace(Placement("a"), node, None, 0)]
        self.files = SimpleNamespace(
            give=self._give, config_at=lambda _: config, folder_at=lambda _: own
        )

    async def _give(self, *_: object) -> None:
        pass

    async def learner_places(self, old: Sequence[NodePlace]) -> list[NodePlace]:
        return list(old)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def mortal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner_ranks, "Process", Mortal)
    monkeypatch.setattr(learner_ranks, "GRACE_S", 0.01)
    monkeypatch.setattr(learner_ranks.ray, "put", lambda value: value)
    monkeypatch.setattr(Mortal, "asked", [])
    monkeypatch.setattr(Mortal, "deaths", set())


def config_of(model: ModelConfig) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": model.model_dump() | {"init": "fresh"},
            "learner": {"batch_size": 8, "micro_batch_size": 2, "learning_rate": 1e-2},
        }
    )


async def trained(
    model: ModelConfig, root: Path, deaths: set[int], *, after: bool, afar: bool
) -> tuple[RunFolder, list[str], list[Any]]:
    """Train like the loop does: each version is saved during the next update."""
    Mortal.deaths, Mortal.asked, Mortal.after = deaths, [], after
    folder, node = RunFolder(root / "run"), root / "node"
    folder.root.mkdir(parents=True)
    node.mkdir()
    config = config_of(model)
    crew: Any = Crew(config, folder, node if afar else None)
    learner = RemoteLearner(config, folder, crew.places, 1, None, crew)
    await learner.start()
    adapters: list[Any] = []

    async def publish(held: HeldVersion) -> None:
        adapters.append(await held.adapter())
        await held.save()

    await publish(await learner.hold())
    publishing = asyncio.create_task(asyncio.sleep(0))
    try:
        for version in range(UPDATES):
            await learner.update(packed_batch(unlike_batch(version)))
            if version == 1:
                await learner.scale_rate(0.5)
            await publishing
            publishing = asyncio.create_task(publish(await learner.hold()))
    finally:
        await publishing
    assert not afar or not [*node.rglob("*.safetensors")], "no weights remain on the node"
    return folder, crew.said, adapters


def weights(folder: RunFolder) -> list[bytes]:
    return [
        (folder.checkpoint(version) / "adapter_model.safetensors").read_bytes()
        for version in range(UPDATES + 1)
    ]


@pytest.mark.parametrize("afar", [False, True])
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.fault("a learner rank crashes")
async def test_restarted_learner_reaches_the_same_weights(
    after: bool, afar: bool, model: ModelConfig, tmp_path: Path
) -> None:
    whole, nothing, adapters = await trained(model, tmp_path / "w", set(), after=False, afar=False)
    assert nothing == []
    calls = len(Mortal.asked)
    assert calls > 4 * UPDATES
    for death in range(after + afar, calls, 4 if after or afar else 2):
        place = tmp_path / f"{death}"
        folder, said, mine = await trained(model, place, {death}, after=after, afar=afar)
        assert weights(folder) == weights(whole), (death, Mortal.asked)
        assert len(said) == 1 and said[0].startswith("the learner died and is restarted from")
        assert len(mine) == len(adapters)


@pytest.mark.fault("a learner rank crashes")
async def test_the_third_death_ends_the_run(model: ModelConfig, tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match=r"the learner's process died in .*--resume"):
        await trained(model, tmp_path, {4, 9, 13}, after=False, afar=False)
    assert RunFolder(tmp_path / "run").versions()


def test_journal_restarts_at_the_last_saved_version() -> None:
    journal = Journal(may_restart=True)
    for call in (("hold", 0), ("update", "a"), ("hold", 1), ("logprobs", "b"), ("update", "c")):
        journal.add(*call)
    journal.saved(0)
    assert (journal.version, len(journal.since)) == (0, 3)
    journal.saved(1)
    assert (journal.version, journal.since) == (1, [("update", ("c",))])
    journal.loaded(7)
    assert (journal.version, journal.since) == (7, [])
    idle = Journal(may_restart=False)
    idle.add("hold", 0)
    idle.saved(0)
    assert (idle.version, idle.since) == (None, [])


async def test_every_rank_gathers_shards_after_a_restart(
    model: ModelConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy of sharded weights is a collective: a rank that makes it alone waits forever."""
    asked: list[tuple[int, str]] = []

    class Rank:
        def __init__(self, _: type, arguments: tuple[Any, ...], *__: Any, **___: Any) -> None:
            self.index = arguments[-2]

        async def call(self, method: str, *_: object) -> int:
            asked.append((self.index, method))
            return 1

    monkeypatch.setattr(learner_ranks, "Process", Rank)
    whole = config_of(model).updated({"model.adapter": "none", "learner.parallel": "fsdp"})
    learner = RemoteLearner(whole, RunFolder(tmp_path), [Placement("a"), Placement("a")], 2)
    held = await learner.hold()
    assert (held.version, asked) == (1, [(0, "keep"), (1, "keep")])
    await learner._catch_up()
    assert asked[2:] == [(0, "keep"), (1, "keep")]
