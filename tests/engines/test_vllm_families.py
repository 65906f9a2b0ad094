"""vLLM, real, on a processor: versions of other families say there what their runs recorded."""

from pathlib import Path

import pytest

from tests.helpers.recorded_versions import KINDS, recorded, run_of
from tests.helpers.vllm import needs_vllm
from unstable.config import parse
from unstable.engines.make import make_engine
from unstable.models.adapters import read_adapter

pytestmark = needs_vllm
NATS = 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("adapter", [{"rank": 8}, "none"], ids=["lora", "whole"])
async def test_a_version_says_what_the_run_recorded(
    kind: str, adapter: object, tmp_path: Path
) -> None:
    folder = await run_of(kind, tmp_path, adapter=adapter)
    config = parse(
        {
            "model": {"name": str(tmp_path / "model"), "dtype": "float32", "adapter": adapter},
            "actors": {
                **{"engine": "vllm", "games_in_flight": 8, "max_loras": 1, "max_cpu_loras": 2},
                "enforce_eager": True,
            },
            "sampling": {"max_tokens": 8, "max_prompt_tokens": 480},
        }
    )
    engine, _ = await make_engine(config, tmp_path / "engine.log")
    try:
        await engine.load(read_adapter(folder.checkpoint(1), "main@1"))
        for turn in recorded(folder, 1)[:8]:
            (scored,) = await engine.score(turn.prompt_ids, [turn.token_ids], adapter="main@1")
            assert scored == pytest.approx(turn.logprobs, abs=NATS)
    finally:
        await engine.close()
