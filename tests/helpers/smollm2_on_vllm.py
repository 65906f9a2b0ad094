"""A vLLM engine of SmolLM2 in float32 for all modules that name this file in `pytest_plugins`."""

import pytest
import pytest_asyncio

from tests.helpers.vllm import CACHED, LIKELIEST, MODEL, Served
from unstable.config import parse
from unstable.engines.kinds import make_engine


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def smollm2(tmp_path_factory: pytest.TempPathFactory):
    config = parse(
        {
            "model": MODEL.model_dump(),
            "actors": {
                **{"engine": "vllm", "games_in_flight": 8, "enforce_eager": True},
                **{"max_loras": 2, "max_cpu_loras": CACHED},
            },
            "sampling": {"max_tokens": 400, "max_prompt_tokens": 112},
            "tracking": {"top_logprobs": LIKELIEST},
        }
    )
    engine, _ = await make_engine(config, tmp_path_factory.mktemp("vllm") / "engine.log")
    yield Served(config, engine)
    await engine.close()
