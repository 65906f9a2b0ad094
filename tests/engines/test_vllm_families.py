"""vLLM, real, on a processor: LoRAs of other families, and an engine that dies."""

import asyncio

import psutil
import pytest
import pytest_asyncio

from tests.helpers.builders import asking
from tests.helpers.recorded_versions import KINDS
from tests.helpers.tables import table
from tests.helpers.vllm import (
    Family,
    assert_serves_what_the_run_recorded,
    needs_vllm,
    serve_family,
    workers,
)
from unstable.engines.base import EngineDiedError
from unstable.models.adapters import read_adapter

pytestmark = [needs_vllm, pytest.mark.asyncio(loop_scope="module")]
FAMILIES = KINDS
CORE = ("gemma3_text",)


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=table("vllm", FAMILIES, CORE))
async def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp(request.param)
    async with serve_family(request.param, folder, {"rank": 8}) as found:
        yield found


async def test_saved_version_reproduces_recorded_logprobs(family: Family) -> None:
    await assert_serves_what_the_run_recorded(family)


async def test_dead_engine_raises_engine_died_error(family: Family) -> None:
    """The last test of an engine."""
    engine = family.engine

    async def ask():
        return await engine.generate(asking([5], max_tokens=480))

    newest = max(workers(psutil.Process()), key=psutil.Process.create_time)
    request = asyncio.create_task(ask())
    while engine.stats()["running"] == 0:
        await asyncio.sleep(0)
    newest.kill()
    with pytest.raises(EngineDiedError):
        await request
    with pytest.raises(EngineDiedError):
        await ask()
    with pytest.raises(EngineDiedError):
        await engine.load(read_adapter(family.run.checkpoint(2), "main@2"))
