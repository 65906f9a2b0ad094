"""JSON of a schema and calls of tools, prompts in lists, echoes: by OpenAI's own client."""

import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio
from transformers import LlamaConfig, LlamaForCausalLM

from tests.helpers.models import random_adapter
from tests.helpers.serving import HI, Endpoint, endpoint, served_config
from unstable.config import load
from unstable.models.base import load_model, load_tokenizer

pytestmark = pytest.mark.asyncio(loop_scope="module")
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"enum": [1, 2]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "add_person", "parameters": PERSON}}
OTHER = {"type": "function", "function": {"name": "stop", "parameters": {"type": "object"}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Endpoint]:
    """A random model of two layers, which says anything, with SmolLM2's tokenizer."""
    folder = tmp_path_factory.mktemp("models") / "any"
    tokenizer = load_tokenizer(load("default", {"model.name": "smollm2-135m"}).model)
    tokenizer.save_pretrained(folder)
    sizes: Any = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads: Any = {"num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": True}
    ends: Any = {"bos_token_id": 1, "eos_token_id": tokenizer.eos_token_id}
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer), max_position_embeddings=1024, **sizes, **heads, **ends
        )
    ).save_pretrained(folder)
    config = served_config(
        model={"name": str(folder), "dtype": "float32", "adapter": {"rank": 4}},
        sampling={"max_prompt_tokens": 400, "max_tokens": 400},
    )
    adapter = random_adapter(load_model(config.model), "main@0", seed=0)
    async with endpoint(config, adapters=[adapter]) as found:
        yield found


def is_person(found: Any) -> bool:
    return found.keys() == {"name", "age"} and len(found["name"]) <= 4 and found["age"] in (1, 2)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_answer_is_json_of_requested_schema(served: Endpoint, temperature: float) -> None:
    form: Any = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    asked: dict[str, Any] = {"model": "base", "messages": HI, "temperature": temperature}
    async with served.client() as client:
        reply = await client.chat.completions.create(**asked, response_format=form, n=2, seed=1)
        texts = [choice.message.content for choice in reply.choices]
        assert all(is_person(json.loads(text or "")) for text in texts)
        assert {choice.finish_reason for choice in reply.choices} == {"stop"}
        again = await client.chat.completions.create(**asked, response_format=form, n=2, seed=1)
        assert [choice.message.content for choice in again.choices] == texts
        free: Any = {"type": "json_object"}
        reply = await client.chat.completions.create(**asked, response_format=form, max_tokens=2)
        (choice,) = reply.choices
        assert (choice.message.content or "")[0] == "{" and choice.finish_reason == "length"
        with pytest.raises(openai.BadRequestError, match="logprobs: unsupported with structured"):
            await client.chat.completions.create(**asked, response_format=free, logprobs=True)
        form["json_schema"]["schema"] = {"type": "person"}
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(**asked, response_format=form)
        assert refused.value.param == "response_format"


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
async def test_required_tool_is_called(served: Endpoint, is_streamed: bool) -> None:
    named = {"type": "function", "function": {"name": "add_person"}}
    for choice in ("required", named):
        tools = [TOOL] if choice == "required" else [OTHER, TOOL]
        asked: Any = {"model": "main@0", "messages": HI, "tools": tools, "tool_choice": choice}
        async with served.client() as client:
            if is_streamed:
                calls: list[Any] = []
                async for piece in await client.chat.completions.create(**asked, stream=True):
                    calls += piece.choices[0].delta.tool_calls or []
            else:
                reply = await client.chat.completions.create(**asked, parallel_tool_calls=False)
                calls = reply.choices[0].message.tool_calls or []
                assert reply.choices[0].finish_reason == "tool_calls"
        (call,) = calls
        assert call.function.name == "add_person" and is_person(json.loads(call.function.arguments))


async def test_list_of_prompts_is_answered_in_order(served: Endpoint) -> None:
    ids = served.tokenizer.encode("two and")
    asked: dict[str, Any] = {"model": "base", "max_tokens": 3, "temperature": 0}
    async with served.client() as client:
        several = await client.completions.create(**asked, prompt=["one", ids], n=2)
        alone = [await client.completions.create(**asked, prompt=p) for p in ("one", ids)]
        assert [each.index for each in several.choices] == [0, 1, 2, 3]
        texts = [each.text for each in several.choices]
        assert texts == [alone[0].choices[0].text] * 2 + [alone[1].choices[0].text] * 2
        assert several.usage.prompt_tokens == 1 + len(ids)
        default = await client.completions.create(model="base", prompt="one", temperature=0)
        assert default.usage.completion_tokens == 16


async def test_echo_has_prompt_logprobs(served: Endpoint) -> None:
    """An echo has each prompt token's logprob and the likeliest token, for multiple choice."""
    greedy: dict[str, Any] = {"model": "base", "temperature": 0, "max_tokens": 4}
    async with served.client() as client:
        start = await client.completions.create(**greedy, prompt="Once upon", logprobs=1)
        whole = "Once upon" + start.choices[0].text
        ids = served.tokenizer.encode("Once upon")
        asked = [*ids, *served.tokenizer.encode(start.choices[0].text)]
        said = await client.completions.create(
            **{**greedy, "max_tokens": 0}, prompt=asked, logprobs=1, echo=True
        )
        (choice,) = said.choices
        assert choice.text == whole and said.usage.completion_tokens == 0
        found = choice.logprobs
        assert found.token_logprobs[0] is None and found.top_logprobs[0] is None
        assert len(found.tokens) == len(found.token_logprobs) == len(found.top_logprobs)
        place = len(ids)
        for token, logprob, top in zip(
            found.tokens[place:],
            found.token_logprobs[place:],
            found.top_logprobs[place:],
            strict=True,
        ):
            assert top == {token: pytest.approx(logprob, abs=1e-4)}
        expected = start.choices[0].logprobs.token_logprobs
        if len(found.tokens[place:]) == len(expected):  # the text has the same tokens again
            assert found.token_logprobs[place:] == pytest.approx(expected, abs=1e-4)


async def test_models_have_creation_times(served: Endpoint) -> None:
    async with served.client() as client:
        models = (await client.models.list()).data
        assert [each.id for each in models] == ["main@0", "base"]
        assert all(each.created > 1.7e9 for each in models)


async def test_structured_output_needs_llguidance(monkeypatch: pytest.MonkeyPatch) -> None:
    from unstable.serving.forms import check_forms
    from unstable.serving.requests import ApiError

    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(ApiError, match=r"pip install -e '.\[forms\]'"):
        check_forms()
