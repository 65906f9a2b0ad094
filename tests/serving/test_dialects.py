"""Anthropic's Messages and OpenAI's Responses: the tokens of chat completions in other words."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.driven import Open, one_game
from tests.helpers.serving import JSON, Endpoint, Says, endpoint, served_config
from unstable.config import ModelConfig
from unstable.contrib.dialects.anthropic import Messages
from unstable.contrib.dialects.responses import Responses
from unstable.models.base import load_tokenizer
from unstable.serving.requests import ApiError, ChatRequest, json_object, read_request

LONGER = served_config(sampling={"max_prompt_tokens": 600, "max_tokens": 16})
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CHAT: dict[str, Any] = {
    "model": "main@0",
    "max_tokens": 9,
    "tools": [{"type": "function", "function": {"name": "add", "parameters": SCHEMA}}],
    "messages": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "2 + 2?"},
        {
            "role": "assistant",
            "content": "I add.",
            "tool_calls": [{"function": {"name": "add", "arguments": '{"a": 2}'}}],
        },
        {"role": "tool", "content": "4"},
        {"role": "user", "content": "Sure?"},
    ],
}
MESSAGES: dict[str, Any] = {
    "model": "main@0",
    "max_tokens": 9,
    "system": [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}],
    "tools": [{"name": "add", "input_schema": SCHEMA}],
    "messages": [
        {"role": "user", "content": "2 + 2?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                {"type": "text", "text": "I add."},
                {"type": "tool_use", "id": "7", "name": "add", "input": {"a": 2}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "7", "content": "4"},
                {"type": "text", "text": "Sure?"},
            ],
        },
    ],
    "metadata": {"user_id": "me"},
}
RESPONSES: dict[str, Any] = {
    "model": "main@0",
    "max_output_tokens": 9,
    "instructions": "Be short.",
    "tools": [{"type": "function", "name": "add", "parameters": SCHEMA, "strict": False}],
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "2 + 2?"}]},
        {"type": "reasoning", "summary": []},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I add.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "7", "name": "add", "arguments": '{"a": 2}'},
        {"type": "function_call_output", "call_id": "7", "output": "4"},
        {"role": "user", "content": "Sure?"},
    ],
    "store": False,
}
BODIES = [(Messages(), MESSAGES), (Responses(), RESPONSES)]
BOTH = pytest.mark.parametrize(("dialect", "body"), BODIES, ids=["anthropic", "responses"])


@BOTH
def test_conversation_becomes_the_same_chat(dialect: Any, body: dict[str, Any]) -> None:
    request = read_request(ChatRequest, dialect.chat(body))
    expected = read_request(ChatRequest, CHAT)
    assert (request.chat, request.offered) == (expected.chat, expected.offered)
    assert request.most_tokens == expected.most_tokens


def _ordered(kind: str, calls: str, outputs: str) -> Any:
    """Return a chat with these calls and outputs, by id, as a dialect and its request."""
    if kind == "chat":
        called = [{"id": name, "function": {"name": "add"}} for name in calls]
        told = [{"role": "tool", "tool_call_id": name, "content": name} for name in outputs]
        said = {"role": "assistant", "content": "", "tool_calls": called}
        return None, CHAT | {"messages": [*CHAT["messages"][:2], said, *told]}
    if kind == "responses":
        function = {"type": "function_call", "name": "add", "arguments": "{}"}
        items = [{**function, "call_id": name} for name in calls]
        output = {"type": "function_call_output"}
        items += [{**output, "call_id": name, "output": name} for name in outputs]
        return Responses(), RESPONSES | {"input": [*RESPONSES["input"][:1], *items]}
    uses = [{"type": "tool_use", "id": name, "name": "add", "input": {}} for name in calls]
    result = {"type": "tool_result"}
    results = [{**result, "tool_use_id": name, "content": name} for name in outputs]
    said = {"role": "assistant", "content": uses}
    turns = [MESSAGES["messages"][0], said, {"role": "user", "content": results}]
    return Messages(), MESSAGES | {"messages": turns}


@pytest.mark.parametrize("kind", ["chat", "responses", "anthropic"])
def test_outputs_follow_the_order_of_their_calls(kind: str) -> None:
    """Claude Code sends the results of calls in the order in which they ended."""
    for calls, outputs, order in (("abc", "cab", "abc"), ("ab", "xba", "xba")):
        dialect, body = _ordered(kind, calls, outputs)
        chat = read_request(ChatRequest, dialect.chat(body) if dialect else body).chat
        assert [each["role"] for each in chat[:3]] == ["system", "user", "assistant"]
        assert "".join(each["content"] for each in chat[3:]) == order


@BOTH
@settings(max_examples=200)
@given(data=st.data())
def test_any_body_is_read_or_refused_in_one_line(dialect: Any, body: Any, data: Any) -> None:
    names = [*body, "tool_choice", "stop_sequences", "text", "include", "background", "stream"]
    changed = body | data.draw(st.dictionaries(st.sampled_from(names), JSON, max_size=3))
    name = "messages" if "messages" in body else "input"
    if data.draw(st.booleans()):
        changed = {**changed, name: [*body[name], data.draw(JSON)]}
    try:
        read_request(ChatRequest, dialect.chat(json_object(json.dumps(changed).encode())))
    except ApiError as error:
        assert error.status == 400 and len(error.message.splitlines()) <= 1
        json.dumps(dialect.error(error)).encode()


async def posted(served: Endpoint, path: str, body: Any, key: str = "any") -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as client:
        url, headers = f"{served.server.url}{path}", {"x-api-key": key}
        return await client.post(url, json=body, headers=headers)


async def events(served: Endpoint, path: str, body: Any) -> list[dict[str, Any]]:
    """Return a stream's events, each named by its type."""
    reply = await posted(served, path, body | {"stream": True})
    found = []
    for each in reply.text.strip().split("\n\n"):
        name, data = each.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


async def test_apis_give_equal_tokens_whole_and_streamed() -> None:
    said: list[Any] = [{"role": "user", "content": "2 + 2?"}]
    same: dict[str, Any] = {"model": "main@0", "temperature": 2.0}
    extra: dict[str, Any] = {"extra_body": {"seed": 1}}
    messages = same | {"messages": said, "max_tokens": 9, "seed": 1}
    async with endpoint() as served, served.client() as client:
        chat = await client.chat.completions.create(**same, messages=said, max_tokens=9, **extra)
        text, tokens = chat.choices[0].message.content, chat.usage
        assert len(text) > 1  # several tokens
        counts = {"input_tokens": tokens.prompt_tokens, "output_tokens": tokens.completion_tokens}

        reply = (await posted(served, "/v1/messages", messages)).json()
        assert reply["content"] == [{"type": "text", "text": text}]
        assert (reply["stop_reason"], reply["usage"]) == ("end_turn", counts)
        first, *_, end, last = found = await events(served, "/v1/messages", messages)
        assert first["message"]["content"] == [] and last == {"type": "message_stop"}
        assert end["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
        assert end["usage"] == counts
        assert "".join(each["delta"].get("text", "") for each in found[2:-3]) == text

        body = same | {"input": "2 + 2?", "max_output_tokens": 9, **extra}
        whole = await client.responses.create(**body, include=["message.output_text.logprobs"])
        assert whole.output_text == text and whole.status == "completed"
        assert whole.usage.input_tokens == tokens.prompt_tokens
        assert "".join(each.token for each in whole.output[0].content[0].logprobs) == text
        parts = []
        async for event in await client.responses.create(**body, stream=True):
            parts.append(event)
        assert [each.sequence_number for each in parts] == list(range(len(parts)))
        assert parts[-1].response.output_text == text
        deltas = [each.delta for each in parts if each.type == "response.output_text.delta"]
        assert "".join(deltas) == text and len(deltas) > 1

        cut = await client.responses.create(**body | {"max_output_tokens": 1})
        assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
        reply = (await posted(served, "/v1/messages", messages | {"max_tokens": 1})).json()
        assert reply["stop_reason"] == "max_tokens"


CALL = 'I add. <tool_call>{"name": "add", "arguments": {"a": 2}}</tool_call>'
FACES = "Né 😀😀!"
SPACED = '<tool_call>{"name": "math__add", "arguments": {"a": 2}}</tool_call>'


@pytest.fixture
async def served() -> AsyncIterator[tuple[Endpoint, Says]]:
    """Endpoint that answers with CALL, with FACES for seed 1 and with SPACED for seed 2."""
    tokenizer = load_tokenizer(ModelConfig())
    ids = {
        text: [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        for text in (CALL, FACES, SPACED)
    }
    engine = Says(lambda seed: ids[{1: FACES, 2: SPACED}.get(seed, CALL)])
    async with endpoint(LONGER, engine, token="secret", tokenizer=tokenizer) as found:
        yield found, engine


async def asked(served: Endpoint, **more: Any) -> dict[str, Any]:
    """Return the answer to a request of Messages."""
    body = MESSAGES | {"max_tokens": 60} | more
    found: dict[str, Any] = (await posted(served, "/v1/messages", body, "secret")).json()
    return found


async def test_tool_calls_and_stop_texts_have_each_apis_form(served: tuple[Endpoint, Says]) -> None:
    endpoint, _ = served
    reply = await asked(endpoint)
    spoken, use = reply["content"]
    assert spoken["text"] == "I add." and reply["stop_reason"] == "tool_use"
    assert (use["type"], use["name"], use["input"]) == ("tool_use", "add", {"a": 2})
    reply = await asked(endpoint, tools=[], stop_sequences=["zzz", "<tool"])
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("stop_sequence", "<tool")
    assert reply["content"] == [{"type": "text", "text": "I add. "}]

    body = RESPONSES | {"max_output_tokens": 60}
    async with endpoint.client("secret") as client:
        whole = await client.responses.create(**body)
        message, call = whole.output
        assert (whole.output_text, call.name, call.arguments) == ("I add.", "add", '{"a": 2}')
        async with client.responses.stream(**body) as stream:
            again = await stream.get_final_response()
    assert [each.type for each in again.output] == ["message", "function_call"]
    assert again.output_text == "I add." and again.usage == whole.usage


async def test_functions_of_a_namespace_are_called_by_both_names(
    served: tuple[Endpoint, Says],
) -> None:
    """Codex offers the tools of an MCP server and those for agents so."""
    question, call, output = (RESPONSES["input"][place] for place in (0, 3, 4))
    said = [question, call | {"namespace": "math"}, output]
    space = {"type": "namespace", "name": "math", "tools": RESPONSES["tools"]}
    plain = {"type": "function", "name": "add"}
    body = RESPONSES | {"max_output_tokens": 60, "input": said, "tools": [plain, space]}
    request = read_request(ChatRequest, Responses().chat(body))
    assert [each["function"]["name"] for each in request.offered] == ["add", "math__add"]
    (earlier,) = request.chat[2]["tool_calls"]
    assert earlier["function"]["name"] == "math__add"
    async with served[0].client("secret") as client:
        for seed, names in ((2, {"name": "add", "namespace": "math"}), (3, {"name": "add"})):
            whole = await client.responses.create(**body, extra_body={"seed": seed})
            async with client.responses.stream(**body, extra_body={"seed": seed}) as stream:
                again = await stream.get_final_response()
            for reply in (whole, again):
                called = reply.output[-1].model_dump(exclude_none=True)
                assert {each: called[each] for each in called if each.startswith("name")} == names


async def test_streamed_logprobs_are_of_all_tokens(served: tuple[Endpoint, Says]) -> None:
    """Some tokens are parts of a character, and the last one has no text."""
    body = RESPONSES | {"max_output_tokens": 60, "tools": [], "extra_body": {"seed": 1}}
    async with served[0].client("secret") as client:
        streamed = client.responses.stream(**body, include=["message.output_text.logprobs"])
        async with streamed as stream:
            parts = [event async for event in stream]
            whole = await stream.get_final_response()
    assert whole.output_text == FACES
    (content,) = whole.model_dump()["output"][0]["content"]
    assert len(content["logprobs"]) == whole.usage.output_tokens
    told = [each.logprobs for each in parts if each.type == "response.output_text.delta"]
    assert sum(map(len, told)) == whole.usage.output_tokens - 1


WRONGS: list[tuple[dict[str, Any], str]] = [
    ({"model": "gone"}, "unknown model 'gone'"),
    ({"top_p": 0.5}, "top_p = 0.5: unsupported"),
    ({"n": 2}, "n: not a field of this API"),
    ({"max_completion_tokens": 3}, "max_completion_tokens: not a field of this API"),
    ({"stop_sequences": ["a"] * 5}, "stop_sequences: 5 texts"),
    ({"stream": "yes"}, "stream: "),
    ({"output_config": {"format": {}}}, "output_config.format: unsupported"),
]


async def test_errors_have_each_apis_form(served: tuple[Endpoint, Says]) -> None:
    endpoint, engine = served
    refused = await posted(endpoint, "/v1/messages", MESSAGES)
    assert refused.status_code == 401
    assert refused.json()["error"]["type"] == "authentication_error"
    for wrong, message in WRONGS:
        error = (await asked(endpoint, **wrong))["error"]
        assert error["message"].startswith(message), error
        assert error["type"] in ("not_found_error", "invalid_request_error")
    for body, param in ((RESPONSES | {"max_output_tokens": 0}, "max_output_tokens"), ({}, "input")):
        refused = await posted(endpoint, "/v1/responses", body, "secret")
        assert refused.json()["error"]["param"] == param
    engine.error = RuntimeError("no")
    assert (await asked(endpoint, stream=True))["error"]["type"] == "api_error"


async def test_prompts_are_counted_as_answers_count_them() -> None:
    """By OpenAI's client, and as Anthropic's sends it."""
    said: list[Any] = [{"role": "user", "content": "2 + 2?"}]
    async with endpoint(LONGER) as served:
        async with openai.AsyncOpenAI(base_url=f"{served.server.url}/v1", api_key="any") as client:
            count = await client.responses.input_tokens.count(model="main@0", input=said)
            reply = await client.responses.create(model="main@0", input=said, max_output_tokens=2)
        body = {"model": "main@0", "messages": said}
        found = await posted(served, "/v1/messages/count_tokens", body)
        assert found.json() == {"input_tokens": count.input_tokens}
        assert reply.usage is not None and count.input_tokens == reply.usage.input_tokens > 0
        refused = await posted(served, "/v1/messages/count_tokens", body | {"model": "gone"})
        assert refused.json()["error"]["type"] == "not_found_error"


async def test_official_client_reads_messages() -> None:
    anthropic = pytest.importorskip("anthropic", reason="pip install anthropic")
    async with endpoint(LONGER) as served:
        client = anthropic.AsyncAnthropic(base_url=served.server.url, api_key="any")
        asked = MESSAGES | {"messages": [{"role": "user", "content": "2 + 2?"}], "tools": []}
        counted = {name: asked[name] for name in ("model", "messages", "system") if name in asked}
        async with client, client.messages.stream(**asked) as stream:
            text = "".join([part async for part in stream.text_stream])
            message = await stream.get_final_message()
            count = await client.messages.count_tokens(**counted)
        assert count.input_tokens == message.usage.input_tokens
        assert message.content[0].text == text and message.usage.output_tokens > 0


def _requests(game: Open, kind: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return a seat's address for an API, and its requests before and after a tool's output."""
    url, question, output = game.told["seats"][0]["base_url"], "2 + 2?", "4 is the sum"
    chat: list[Any] = [{"role": "user", "content": question}]
    if kind == "chat":
        after = [*chat, {"role": "assistant", "content": "{}"}, {"role": "tool", "content": output}]
        return f"{url}/chat/completions", {"messages": chat}, {"messages": after}
    if kind == "responses":
        told = {"type": "function_call_output", "call_id": "7", "output": output}
        after = [*chat, {"role": "assistant", "content": "{}"}, told]
        return f"{url}/responses", {"input": chat}, {"input": after}
    result = [{"type": "tool_result", "tool_use_id": "7", "content": output}]
    said = {"role": "assistant", "content": [{"type": "text", "text": "{}"}]}
    after = [*chat, said, {"role": "user", "content": result}]
    return f"{url}/messages", {"messages": chat}, {"messages": after}


async def test_seats_of_games_record_equal_tokens_for_every_api(tmp_path: Any) -> None:
    recorded, counts = {}, list[dict[str, Any]]()
    for kind in ("chat", "responses", "anthropic"):
        most = "max_output_tokens" if kind == "responses" else "max_tokens"
        async with one_game(tmp_path / kind, sampling={"max_tokens": 200}) as game:
            key = game.told["seats"][0]["api_key"]
            url, first, second = _requests(game, kind)
            body: dict[str, Any] = {"model": "any", most: 5}
            reply = (await game.door.post(url, key, body | first)).json()
            chosen = reply["choices"][0]["message"] if kind == "chat" else reply
            text = chosen["content"] if kind == "chat" else ""
            if kind == "responses":
                text = reply["output"][0]["content"][0]["text"]
            if kind == "anthropic":
                text = "".join(block["text"] for block in reply["content"])
            if path := {"responses": "/input_tokens", "anthropic": "/count_tokens"}.get(kind):
                counts.append((await game.door.post(f"{url}{path}", key, body | first)).json())
            told = json.loads(json.dumps(second).replace('"{}"', json.dumps(text)))
            if path:
                counts.append((await game.door.post(f"{url}{path}", key, body | told)).json())
            await game.door.post(url, key, body | told)
            await game.end(payoffs=[0, 0])
            (turn,) = (await game.result()).turns
            sampled = turn.answer.sampled
            assert sampled is not None
            assert [each.scored for each in sampled.segments] == [True, False, True]
            recorded[kind] = sampled.prompt_ids, sampled.token_ids, sampled.logprobs
            lengths = (len(each.token_ids) for each in sampled.segments[:2])
            before = [len(sampled.prompt_ids), len(sampled.prompt_ids) + sum(lengths)]
    assert recorded["responses"] == recorded["chat"] == recorded["anthropic"]
    assert [each["input_tokens"] for each in counts] == before * 2
