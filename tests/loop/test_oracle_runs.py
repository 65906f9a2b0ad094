"""Whole runs whose rewards come from an oracle: what fails goes as declared, nothing is lost."""

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.endpoint import Reply, Server
from tests.helpers.judged import SEATS
from tests.helpers.loop import Begin, make_context, played
from tests.helpers.models import random_adapter
from unstable.config import ModelConfig
from unstable.loop.train import train
from unstable.models.adapters import write_adapter
from unstable.models.base import load_model
from unstable.records.reading import read_rows
from unstable.runtime.local import LocalActor


class Judged:
    """Service that has no value for a third of the items it receives, selected by content."""

    def __init__(self) -> None:
        self.asked = self.failed = 0

    def __call__(self, request: dict[str, Any]) -> dict[str, Any]:
        values: list[Any] = []
        for item in request["items"]:
            self.asked += 1
            fails = zlib.crc32(json.dumps(item).encode()) % 3 == 0
            self.failed += fails
            values.append("no idea" if fails else len(item["turns"]) / 10)
        return {"values": values}


@pytest.fixture
def judged() -> Iterator[tuple[Server, Judged]]:
    server, service = Server(), Judged()
    server.replies = [Reply(body=service)]
    yield server, service
    server.close()


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("policy", ["drop", "zero", "last"])
@pytest.mark.fault("a judge fails, stalls or answers nonsense")
async def test_partly_failing_judge_follows_on_failure(
    begin: Begin, judged: tuple[Server, Judged], policy: str, mode: str
) -> None:
    server, service = judged
    service_of = {"kind": SEATS, "args": {"url": server.url}}
    context = begin(
        judges={"http": {**service_of, "on_failure": policy}},
        buffer={"rewards": [{"term": "outcome"}, {"term": "http", "weight": 0.5}]},
        learner={"batch_size": 8, "learning_rate": 1e-3},
        eval={"every": 0},
        loop={"mode": mode, "steps": 2, "max_failures": 99},
    )
    assert await train(context) == "all updates made"
    rows, games = read_rows(context.folder.metrics), played(context.folder)

    def total(name: str) -> float:
        return sum(row.get(name) or 0 for row in rows)

    rewards = [t["rewards"] for game in games for t in game["turns"] if t["rewards"] is not None]
    assert rewards and all({"outcome", "http"} == set(terms) for terms in rewards)
    assert all(terms["http"]["weighted"] == terms["http"]["raw"] / 2 for terms in rewards)
    # In async mode some games end after the last row.
    assert total("collect/games") == len(games) or mode == "async"
    assert service.failed > 0 and total("judge/http/calls") <= service.asked
    if mode == "sync":
        assert total("judge/http/asked") == service.asked
        assert total("judge/http/failures") <= service.failed
    if policy == "drop":
        assert total("collect/failures") > 0
        assert all(terms["http"]["raw"] > 0 for terms in rewards)
        return
    assert total("collect/failures") == 0
    if mode == "sync":
        assert total("judge/http/failures") == service.failed
    assert any(terms["http"]["raw"] > 0 for terms in rewards)
    assert policy == "last" or any(terms["http"]["raw"] == 0 for terms in rewards)


async def test_own_engine_judge_is_reproducible(tiny_folder: Path, tmp_path: Path) -> None:
    games = []
    for number in range(2):
        base, adapter = load_model_of(tiny_folder), tmp_path / f"adapter{number}"
        adapter.mkdir()
        write_adapter(random_adapter(base, "any", seed=1), adapter)
        args = {"engine": str(adapter), "max_tokens": 4, "votes": 2, "max_characters": 300}
        own = {"kind": "llm", "args": args, "retries": 0, "on_failure": "zero"}
        context = make_context(
            tiny_folder,
            tmp_path / f"run{number}",
            judges={"judge": own},
            buffer={"rewards": [{"term": "outcome"}, {"term": "judge"}]},
            learner={"batch_size": 8, "learning_rate": 1e-3},
            eval={"every": 0},
            loop={"mode": "sync", "steps": 2},
        )
        (actor,) = context.actors
        assert isinstance(actor, LocalActor)
        await actor.load_adapters()
        await train(context)
        rows = read_rows(context.folder.metrics)
        # A model of random weights gives no valid verdict.
        assert sum(row.get("judge/judge/failures") or 0 for row in rows) > 0
        assert sum(row.get("judge/judge/reply_tokens") or 0 for row in rows) > 0
        assert sum(row.get("collect/failures") or 0 for row in rows) == 0
        games.append(played(context.folder))
    assert games[0] == games[1]


def load_model_of(folder: Path) -> Any:
    return load_model(ModelConfig(name=str(folder), dtype="float32"))
