"""The pieces of a stream join to the whole answer, with any other option of the request."""

from collections.abc import AsyncIterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch

from tests.helpers.embedded import plain_logprobs
from tests.helpers.serving import HI, Endpoint, Says, endpoint, served_config
from unstable.config import ModelConfig
from unstable.models.base import load_model, load_tokenizer
from unstable.types import Completion

SAID = "Naïve 👩‍👩‍👧 said: «中文», 🇩🇪! \n\nThen [4] 😀😀 and the end."


async def streamed(served: Endpoint, **request: Any) -> tuple[list[list[Any]], Any]:
    """By choice, its pieces in order; and the usage, if it came."""
    async with served.client() as client:
        pieces: dict[int, list[Any]] = {}
        usage = None
        asked = {"model": "main@0", "messages": HI, **request}
        async for piece in await client.chat.completions.create(stream=True, **asked):
            usage = piece.usage or usage
            for choice in piece.choices:
                pieces.setdefault(choice.index, []).append(choice)
        return [pieces[index] for index in sorted(pieces)], usage


async def whole(served: Endpoint, **request: Any) -> Any:
    async with served.client() as client:
        return await client.chat.completions.create(**{"model": "main@0", "messages": HI} | request)


def rows(choices: Sequence[Any]) -> list[tuple[str, float, list[tuple[str, float]]]]:
    """Tokens with their logprobs and the likeliest, of one choice or of its pieces."""
    return [
        (token.token, token.logprob, [(other.token, other.logprob) for other in token.top_logprobs])
        for choice in choices
        if choice.logprobs
        for token in choice.logprobs.content
    ]


@pytest.mark.parametrize("stop", [None, "\n\n", ["zzz", "4]", "😀"], "👩‍👩‍👧", "said: «"])
async def test_multi_token_characters_are_streamed_whole(stop: Any) -> None:
    tokenizer = load_tokenizer(ModelConfig())
    ids = tokenizer.encode(SAID, add_special_tokens=False)
    engine = Says(lambda seed: [*ids, tokenizer.eos_token_id])
    config = served_config()
    extra: dict[str, Any] = {} if stop is None else {"stop": stop}
    asked = extra | {"seed": 1, "max_tokens": 64, "extra_body": {"return_token_ids": True}}
    asked |= {"logprobs": True}
    async with endpoint(config, engine, tokenizer=tokenizer) as served:
        answer = (await whole(served, **asked)).choices[0]
        (pieces,), _ = await streamed(served, **asked)
        stops = [stop] if isinstance(stop, str) else stop or []
        first = min([SAID.find(each) for each in stops if each in SAID], default=len(SAID))
        assert answer.message.content == SAID[:first] and answer.finish_reason == "stop"
        texts = [piece.delta.content for piece in pieces if piece.delta.content]
        assert "".join(texts) == answer.message.content
        assert all("\ufffd" not in text for text in texts) and (len(texts) > 5 or first < 20)
        assert [p.finish_reason for p in pieces] == [None] * (len(pieces) - 1) + ["stop"]
        assert rows(pieces) == rows([answer])
        sent = [token for piece in pieces for token in getattr(piece, "token_ids", None) or ()]
        assert sent == answer.token_ids == engine_ids(ids, tokenizer.eos_token_id, tokenizer, stops)
        assert engine.given_up == (2 if stops else 0) and engine.running == 0


def engine_ids(ids: list[int], end: int, tokenizer: Any, stops: Sequence[str]) -> list[int]:
    """Return the ids up to the one that completes a stop, where the engine ends its answer."""
    for count in range(1, len(ids) + 1):
        if any(stop in tokenizer.decode(ids[:count]) for stop in stops):
            return ids[:count]
    return [*ids, end]


@pytest.fixture
async def served() -> AsyncIterator[Endpoint]:
    async with endpoint(versions=(0, 7)) as found:
        yield found


async def test_stream_equals_whole_answer(served: Endpoint) -> None:
    asked = {"seed": 5, "max_tokens": 9, "n": 3, "temperature": 1.7}
    tokens = {"logprobs": True, "top_logprobs": 2}
    answer = await whole(served, **asked, **tokens)
    choices, usage = await streamed(
        served, **asked, **tokens, stream_options={"include_usage": True}
    )
    assert usage == answer.usage and len(choices) == 3 == len(answer.choices)
    for pieces, one in zip(choices, answer.choices, strict=True):
        said = "".join(piece.delta.content or "" for piece in pieces)
        assert said == one.message.content
        assert "".join(token for token, _, _ in rows(pieces)) == said
        near(rows(pieces), rows([one]))
        assert pieces[0].delta.role == "assistant" and pieces[-1].finish_reason == one.finish_reason
    assert len({one.message.content for one in answer.choices}) > 1
    alone = await whole(served, **{**asked, "n": 1}, **tokens)
    near(rows(alone.choices), rows(answer.choices[:1]))


def near(found: Any, wanted: Any) -> None:
    """Assert equal tokens, and logprobs that differ only by the rounding of other batches."""
    assert [token for token, _, _ in found] == [token for token, _, _ in wanted]
    for (_, one, others), (_, other, likeliest) in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, abs=1e-4)
        assert others == [(token, pytest.approx(value, abs=1e-4)) for token, value in likeliest]


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
async def test_logprobs_are_at_sampling_temperature(served: Endpoint, temperature: float) -> None:
    model = load_model(served.config.model)
    async with served.client() as client:
        reply = await client.completions.create(
            model="base",
            prompt=[5, 6, 7],
            seed=2,
            max_tokens=8,
            temperature=temperature,
            logprobs=3,
            extra_body={"return_token_ids": True},
        )
    choice: Any = reply.choices[0]
    answer = Completion(token_ids=choice.token_ids, logprobs=[], finish_reason="stop", adapter=None)
    plain = plain_logprobs(model, [5, 6, 7], answer, temperature or 1.0)
    torch.testing.assert_close(
        torch.tensor(choice.logprobs.token_logprobs), plain, atol=1e-4, rtol=0
    )
    best = [max(each.values()) for each in choice.logprobs.top_logprobs]
    if temperature == 0.0:
        assert best == choice.logprobs.token_logprobs
    offsets, tokens = choice.logprobs.text_offset, choice.logprobs.tokens
    assert all(b - a == len(t) for (a, b), t in zip(pairwise(offsets), tokens, strict=False))


async def test_text_streams_of_versions_differ(served: Endpoint) -> None:
    async with served.client() as client:
        asked: dict[str, Any] = {"prompt": "X moves.", "max_tokens": 12, "seed": 3}
        asked["logprobs"] = 0
        found = set()
        for name in ("main@0", "main@7", "base"):
            one = (await client.completions.create(model=name, **asked)).choices[0]
            pieces = await client.completions.create(model=name, stream=True, **asked)
            texts = [choice.text async for piece in pieces for choice in piece.choices]
            assert "".join(texts) == one.text
            found.add(tuple(one.logprobs.token_logprobs))
        assert len(found) == 3


async def test_tool_call_is_streamed_at_the_end() -> None:
    tokenizer = load_tokenizer(ModelConfig())
    said = 'Well. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    ids = tokenizer.encode(said, add_special_tokens=False)
    function = {"name": "add", "parameters": {"type": "object"}}
    asked = {"tools": [{"type": "function", "function": function}], "max_tokens": 64, "seed": 1}
    async with endpoint(engine=Says(lambda seed: ids), tokenizer=tokenizer) as served:
        (one,) = (await whole(served, **asked)).choices
        (pieces,), _ = await streamed(served, **asked)
    assert (one.finish_reason, one.message.content) == ("tool_calls", "Well.")
    (call,) = one.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("add", '{"a": 1}')
    assert "".join(piece.delta.content or "" for piece in pieces) == "Well."
    (told,) = pieces[-1].delta.tool_calls
    assert (told.index, told.function.name, told.function.arguments) == (0, "add", '{"a": 1}')
    assert pieces[-1].finish_reason == "tool_calls"
