"""A failure during the start of a run closes everything that has started."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.helpers.rows import every_row
from tests.helpers.vllm import Deaf, Scorer
from unstable.config import ConfigError, parse
from unstable.engines.base import Engine
from unstable.engines.embedded.engine import EmbeddedEngine
from unstable.engines.probe import ProbeAnswer, Probes, ask_probe, probes
from unstable.models.base import load_model
from unstable.models.shape import read_shape
from unstable.planning.machine import LOOPBACK, Placement
from unstable.records.folder import RunFolder
from unstable.runtime import actors as actors_module
from unstable.runtime import local, processes
from unstable.runtime.stream import Part
from unstable.types import Adapter, TokenSample


class Started:
    """A process that records its end; the one with number `fails` does not start."""

    made: list["Started"] = []
    fails: int | None = None

    def __init__(self, *_: Any, **__: Any) -> None:
        self.number, self.ended = len(self.made), ""
        self.made.append(self)
        self.actor = SimpleNamespace(ended=SimpleNamespace(remote=self._results))

    async def _results(self) -> AsyncIterator[Awaitable[list[Part]]]:
        await asyncio.sleep(600)  # no results
        yield asyncio.sleep(0, [])

    async def start(self, *_: object) -> int:
        if self.number == self.fails:
            await asyncio.sleep(0.05)
            raise ConfigError("model.adapter: does not fit")
        if self.fails is not None and self.number > self.fails:
            await asyncio.sleep(600)  # like a process that is still loading its model
        return 1

    async def call(self, method: str, *_: object) -> dict[str, float]:
        self.ended = method if method == "close" else self.ended
        return {}

    def kill(self) -> None:
        self.ended = "killed"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Started]:
    """Record the processes that are made, without Ray."""

    @contextmanager
    def no_cluster(_: int):
        yield

    monkeypatch.setattr(Started, "made", [])
    monkeypatch.setattr(Started, "fails", None)
    monkeypatch.setattr(actors_module, "Process", Started)
    monkeypatch.setattr(processes, "cluster", no_cluster)
    return Started.made


PLACES = [Placement(LOOPBACK)] * 3


@pytest.mark.fault("a process does not start")
async def test_started_actors_are_closed_if_another_fails(
    made: list[Started], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Started, "fails", 1)
    with pytest.raises(ConfigError, match="does not fit"):
        async with processes.acting(parse({}), PLACES, RunFolder(tmp_path), lambda _: None):
            raise AssertionError("the run must not start")
    assert [each.ended for each in made] == ["close", "killed", "killed"]


async def test_started_actors_are_closed_if_the_learner_fails(
    made: list[Started], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse() -> None:
        await asyncio.sleep(0.05)
        raise ConfigError("learner.state: does not fit")

    learner = SimpleNamespace(start=refuse)
    monkeypatch.setattr(processes, "RemoteLearner", lambda *_: learner)
    plan: Any = SimpleNamespace(
        actors=PLACES, learners=PLACES[:1], learner_threads=1, share="off", grows=False
    )
    with pytest.raises(ConfigError, match="learner.state"):
        async with processes.processes(parse({}), plan, RunFolder(tmp_path), lambda _: None):
            raise AssertionError("the run must not start")
    assert [each.ended for each in made] == ["close"] * 3


async def test_failed_start_closes_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    async def close() -> None:
        closed.append("engine")

    async def make(*_: object) -> tuple[Engine, Any]:
        return SimpleNamespace(close=close), None

    async def refuse() -> None:
        raise ConfigError("opponents.fixed.0: does not fit")

    async def end() -> None:
        closed.append("games")

    collector = SimpleNamespace(start=refuse, close=end, prompts={})
    monkeypatch.setattr(local, "make_engine", make)
    monkeypatch.setattr(local, "Collector", lambda *_: collector)
    with pytest.raises(ConfigError, match="opponents.fixed.0"):
        await local.LocalActor.start(parse({}), RunFolder(tmp_path), tmp_path / "log")
    assert closed == ["games", "engine"]


async def test_probe_detects_an_engine_that_serves_the_base(tiny_folder: Path) -> None:
    """Each actor is checked separately: a mean over all would hide one."""
    config = parse({"model": {"name": str(tiny_folder), "dtype": "float32", "init": "fresh"}})
    engine = EmbeddedEngine(load_model(config.model), (), max_requests=4)
    policy = Scorer(config.model)

    made, size = probes(config.model), read_shape(config.model).vocabulary
    right = await ask_probe(engine, made.versions, size)
    deaf = await ask_probe(cast(Engine, Deaf(engine)), made.versions, size)
    await engine.close()
    asked: list[ProbeAnswer] = []

    async def logprobs_under(adapter: Adapter, _: Sequence[TokenSample]) -> Any:
        return policy.score(asked, adapter)

    async def learner_probes() -> Probes:
        return made

    async def probe(*given: list[ProbeAnswer]) -> list[str]:
        async def answered(answers: list[ProbeAnswer]) -> list[ProbeAnswer]:
            return answers

        asked[:] = [answer for answers in given for answer in answers]
        actors: Any = [
            SimpleNamespace(probe=lambda *_, answers=answers: answered(answers))
            for answers in given
        ]
        learner: Any = SimpleNamespace(probes=learner_probes, logprobs_under=logprobs_under)
        return await processes._probe(config, actors, learner)

    assert await probe(*[right] * 7) == []
    with pytest.raises(RuntimeError, match="^actor-7: start-up probe: the engine's logprobs under"):
        await probe(*[right] * 7, deaf)


@every_row("cards, most", (("0", "0", "1"), 2), ((None, None, None), 3))
def test_engines_on_one_gpu_start_one_by_one(cards: tuple[str | None, ...], most: int) -> None:
    """Each engine measures free GPU memory; without GPUs all start at once."""
    at_once: set[int] = set()
    seen: list[set[int]] = []

    class Starting:
        async def start(self) -> None:
            at_once.add(id(self))
            seen.append(set(at_once))
            await asyncio.sleep(0)
            at_once.remove(id(self))

    actors: list[Any] = [Starting() for _ in cards]
    places = [Placement(LOOPBACK, (card,) if card else ()) for card in cards]

    async def main() -> None:
        await asyncio.gather(*processes._starts(actors, places))

    asyncio.run(main())
    assert len(seen) == len(cards)
    assert max(map(len, seen)) == most
    assert not any({id(actors[0]), id(actors[1])} <= running for running in seen) or most == 3
