"""The endpoint with vLLM as its engine: SmolLM2 in float32 on the CPU build."""

import asyncio
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio

from tests.helpers.builders import asking
from tests.helpers.serving import HI, Endpoint, endpoint
from tests.helpers.vllm import MODEL, Scorer, Served, needs_vllm
from unstable.engines.probe import ProbeAnswer, probe_adapters
from unstable.models.shape import read_shape
from unstable.types import Adapter, Completion

pytest_plugins = "tests.helpers.smollm2_on_vllm"
pytestmark = [needs_vllm, pytest.mark.asyncio(loop_scope="session")]

MADE = probe_adapters(read_shape(MODEL), MODEL.lora)[0] if needs_vllm.args[0] is False else None
ASKED: dict[str, Any] = {"messages": HI, "max_tokens": 12, "logprobs": True, "top_logprobs": 2}


def version() -> Adapter:
    assert MADE is not None
    return Adapter(name="main@0", weights=MADE.weights, config=MADE.config)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(smollm2: Served):
    config, engine = smollm2
    await engine.load(version())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "close", engine.forget_prefixes)  # the session closes it
        async with endpoint(config, engine) as found:
            yield found
    await engine.unload("main@0")


async def whole(served: Endpoint, **request: Any) -> Any:
    async with served.client() as client:
        body = {"return_token_ids": True}
        return await client.chat.completions.create(**ASKED | request, extra_body=body)


async def test_stream_equals_whole_answer_with_exact_logprobs(served: Endpoint) -> None:
    scorer = Scorer(MODEL)
    for name, adapter in (("main@0", version()), ("base", None)):
        for temperature, seed in ((1.0, 1), (0.6, 2)):
            asked = {"model": name, "temperature": temperature, "seed": seed}
            reply = await whole(served, **asked)
            (choice,) = reply.choices
            rows = choice.logprobs.content
            answer = ProbeAnswer(
                prompt_ids=reply.prompt_token_ids,
                completion=Completion(
                    token_ids=choice.token_ids,
                    logprobs=[row.logprob for row in rows],
                    finish_reason="stop",
                    adapter=None,
                ),
            )
            (expected,) = scorer.score([answer], adapter, temperature)
            assert np.abs(np.array(expected) - answer.completion.logprobs).max() < 1e-3
            ids, text, streamed = await pieces(served, **asked)
            assert ids == choice.token_ids and text == choice.message.content
            for row, other in zip(rows, streamed, strict=True):
                assert row.logprob == pytest.approx(other.logprob, abs=1e-4)
                assert len(row.top_logprobs) == 2 == len(other.top_logprobs)


async def pieces(served: Endpoint, **request: Any) -> tuple[list[int], str, list[Any]]:
    """The tokens of a streamed answer, its text, and its rows of logprobs."""
    ids, text, rows = list[int](), "", list[Any]()
    async with served.client() as client:
        body = {"return_token_ids": True}
        asked = ASKED | request
        async for piece in await client.chat.completions.create(
            **asked, stream=True, extra_body=body
        ):
            for choice in piece.choices:
                text += choice.delta.content or ""
                ids += getattr(choice, "token_ids", None) or []
                rows += choice.logprobs.content if choice.logprobs else []
    return ids, text, rows


async def test_parameters_that_vllm_rejects_give_status_400(served: Endpoint) -> None:
    with pytest.raises(ValueError, match="temperature = .*must be <= 2 with vLLM"):
        await served.engine.generate(asking([5], temperature=9.0, max_tokens=2))
    with pytest.raises(openai.BadRequestError, match="less than or equal to 2"):
        await whole(served, model="base", temperature=9.0)


async def test_stop_text_or_disconnect_ends_answer(served: Endpoint) -> None:
    one = (await whole(served, model="base", seed=3)).choices[0]
    stop = one.message.content[2:4]
    cut = (await whole(served, model="base", seed=3, stop=stop, max_tokens=300)).choices[0]
    assert cut.message.content == one.message.content.partition(stop)[0]
    assert cut.finish_reason == "stop" and len(cut.token_ids) <= len(one.token_ids)
    asking = asyncio.create_task(whole(served, model="base", max_tokens=390, temperature=2.0))
    async with asyncio.timeout(60):
        while not served.engine.stats()["running"]:
            await asyncio.sleep(0.01)
        asking.cancel()
        while served.engine.stats()["running"]:
            await asyncio.sleep(0.01)
    assert served.seat.counts.left == 1 and served.seat.counts.in_flight == 0
