"""Errors of a request are reported in the API's own form, and cost no other client anything."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.helpers.serving import HI, LENGTH, Endpoint, endpoint

pytestmark = pytest.mark.asyncio(loop_scope="module")
Said = Mapping[str, str | None]
CHAT: dict[str, Any] = {"model": "main@0", "messages": HI, "max_tokens": 3}
TEXT = {"model": "base", "prompt": "hi", "max_tokens": 3}
LONG = "x" * LENGTH


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served() -> AsyncIterator[Endpoint]:
    async with endpoint(token="sesame") as found:
        yield found


async def ask(
    served: Endpoint,
    body: Any,
    path: str = "/chat/completions",
    method: str = "POST",
    token: str | None = "sesame",
    kind: str = "application/json",
) -> httpx.Response:
    headers = [(b"Content-Type", kind.encode())]
    if token is not None:
        headers.append((b"Authorization", f"Bearer {token}".encode()))
    content = body if isinstance(body, str | bytes) else json.dumps(body)
    async with httpx.AsyncClient(timeout=60) as client:
        return await client.request(method, served.url + path, content=content, headers=headers)


WRONG: list[tuple[str, dict[str, Any], int, Said]] = [
    ("unknown model", {"model": "main@1"}, 404, {"param": "model", "code": "model_not_found"}),
    ("model name of control characters", {"model": "\ud800\x1b"}, 404, {"param": "model"}),
    ("no messages", {"messages": []}, 400, {"param": "messages"}),
    ("content is not text", {"messages": [{"role": "user", "content": 3}]}, 400, {}),
    (
        "image part",
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        400,
        {"message": "messages.0.content: unsupported part type 'image_url'; use text"},
    ),
    ("role", {"messages": [{"role": "king", "content": "x"}]}, 400, {"param": "messages.0.role"}),
    ("lone surrogate", {"messages": [{"role": "user", "content": "\ud800"}]}, 400, {}),
    ("top_p", {"top_p": 0.5}, 400, {"param": "top_p", "code": "unsupported_parameter"}),
    ("top_k", {"top_k": 5}, 400, {"param": "top_k", "code": "unsupported_parameter"}),
    ("presence_penalty", {"presence_penalty": 1}, 400, {"param": "presence_penalty"}),
    ("logit_bias", {"logit_bias": {"5": 1}}, 400, {"param": "logit_bias"}),
    ("format", {"response_format": {"type": "json_object"}}, 400, {"param": "response_format"}),
    ("max_tokens = 0", {"max_tokens": 0}, 400, {"param": "max_tokens"}),
    ("too many tokens", {"max_tokens": 10**9}, 400, {"param": "max_tokens"}),
    (
        "prompt too long",
        {"messages": [{"role": "user", "content": LONG}], "max_tokens": None},
        400,
        {"param": "messages", "code": "context_length_exceeded"},
    ),
    ("negative temperature", {"temperature": -1}, 400, {"param": "temperature"}),
    ("nearly greedy", {"temperature": 1e-30}, 400, {"param": "temperature"}),
    ("temperature too high", {"temperature": 1e9}, 400, {"param": "temperature"}),
    ("temperature NaN", {"temperature": float("nan")}, 400, {"param": "temperature"}),
    ("n = 0", {"n": 0}, 400, {"param": "n"}),
    ("n = 65", {"n": 65}, 400, {"param": "n"}),
    ("70-bit seed", {"seed": 2**70}, 400, {"param": "seed"}),
    ("top_logprobs 4", {"logprobs": True, "top_logprobs": 4}, 400, {"param": "top_logprobs"}),
    ("top_logprobs 21", {"logprobs": True, "top_logprobs": 21}, 400, {"param": "top_logprobs"}),
    ("5 stops", {"stop": [*"abcde"]}, 400, {"message": "stop: 5 texts, but the maximum is 4"}),
    ("bad stream", {"stream": 5}, 400, {"message": "stream: Input should be a valid boolean"}),
    ("include_usage as text", {"stream_options": {"include_usage": "yes"}}, 400, {}),
    ("max_tokens as text", {"max_tokens": "8"}, 400, {"param": "max_tokens"}),
    ("n as boolean", {"n": True}, 400, {"param": "n"}),
    ("legal_moves", {"legal_moves": ["[1]"]}, 400, {"param": "legal_moves"}),
    ("tool first", {"messages": [{"role": "tool", "content": "2"}]}, 400, {"param": "messages"}),
    ("tool without name", {"tools": [{"type": "function", "function": {}}]}, 400, {}),
    ("schema", {"response_format": {"type": "json_schema"}}, 400, {"param": "response_format"}),
    *(
        (name, {name: value}, 400, {"param": name, "code": "unsupported_parameter"})
        for name, value in (
            ("chat_template_kwargs", {"enable_thinking": False}),
            *(("guided_choice", ["a"]), ("stop_token_ids", [5]), ("min_tokens", 3)),
            *(("ignore_eos", True), ("continue_final_message", True), ("prompt_logprobs", 1)),
            *(("reasoning_effort", "low"), ("functions", [{"name": "f"}])),
        )
    ),
    ("tool_choice without tools", {"tool_choice": "required"}, 400, {"param": "tool_choice"}),
]


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("change", "status", "said"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG]
)
async def test_invalid_chat_request_is_rejected(
    served: Endpoint, change: dict[str, Any], status: int, said: Said, is_streamed: bool
) -> None:
    check(await ask(served, CHAT | {"stream": is_streamed} | change), status, said)


def check(reply: httpx.Response, status: int, said: Said) -> None:
    assert reply.status_code == status, reply.text
    assert reply.headers["content-type"] == "application/json"
    error = reply.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"].isprintable() and len(error["message"]) < 600
    assert said.items() <= error.items(), error


OTHERS: list[tuple[dict[str, Any], int, Said]] = [
    ({"body": "{"}, 400, {"message": "the request body is not JSON"}),
    ({"body": b"\xff\xfe"}, 400, {"message": "the request body is not JSON"}),
    ({"body": "[" * 100_000}, 400, {"message": "the request body is not JSON"}),
    ({"body": "[]"}, 400, {"message": "the request body is not a JSON object"}),
    ({"body": "{}"}, 400, {"param": "model"}),
    ({"body": "x" * (4 * 2**20 + 1)}, 413, {}),
    ({"body": "x" * (20 * 2**20)}, 413, {}),
    ({"body": CHAT, "kind": "text/plain"}, 415, {}),
    ({"body": CHAT, "token": "sesam"}, 401, {"code": "invalid_api_key"}),
    ({"body": CHAT, "token": None}, 401, {"code": "invalid_api_key"}),
    ({"body": "", "token": "é", "method": "GET", "path": "/models"}, 401, {}),
    ({"body": "", "token": None, "method": "GET", "path": "/models"}, 401, {}),
    ({"body": "", "token": None, "method": "GET", "path": "/models/base"}, 401, {}),
    ({"body": "", "method": "GET", "path": "/models/none"}, 404, {"code": "model_not_found"}),
    ({"body": CHAT, "path": "/embeddings"}, 404, {"type": "invalid_request_error"}),
    ({"body": CHAT, "path": "/../../etc/passwd"}, 404, {}),
    ({"body": "", "method": "GET"}, 405, {}),
    ({"body": CHAT, "method": "DELETE", "path": "/models"}, 405, {}),
    ({"body": {**TEXT, "prompt": []}, "path": "/completions"}, 400, {"param": "prompt"}),
    ({"body": {**TEXT, "prompt": [-1]}, "path": "/completions"}, 400, {}),
    ({"body": {**TEXT, "prompt": [10**30]}, "path": "/completions"}, 400, {}),
    ({"body": {**TEXT, "prompt": ["a", 5]}, "path": "/completions"}, 400, {"param": "prompt.1"}),
    ({"body": {**TEXT, "prompt": ""}, "path": "/completions"}, 400, {"param": "prompt"}),
    (
        {
            "body": {**TEXT, "prompt": [5, 10**6], "echo": True, "max_tokens": 0, "logprobs": 1},
            "path": "/completions",
        },
        *(400, {"param": "prompt"}),
    ),
    ({"body": {**TEXT, "max_tokens": 0}, "path": "/completions"}, 400, {"param": "max_tokens"}),
    ({"body": {**TEXT, "prompt": "x" * 10**6}, "path": "/completions"}, 400, {"param": "prompt"}),
    ({"body": {**TEXT, "prompt": "\ud800"}, "path": "/completions"}, 400, {"param": "prompt"}),
    (
        {"body": {**TEXT, "echo": True, "stream": True}, "path": "/completions"},
        *(400, {"message": "echo: conflicts with stream; remove one of them", "param": "echo"}),
    ),
    ({"body": {**TEXT, "suffix": "x"}, "path": "/completions"}, 400, {"param": "suffix"}),
    ({"body": {**TEXT, "best_of": 2}, "path": "/completions"}, 400, {"param": "best_of"}),
]


@pytest.mark.parametrize(
    ("request_", "status", "said"), OTHERS, ids=[str(o[0])[:60] for o in OTHERS]
)
async def test_invalid_request_is_rejected(
    served: Endpoint, request_: dict[str, Any], status: int, said: Said
) -> None:
    check(await ask(served, **request_), status, said)


async def test_neutral_parameters_are_accepted(served: Endpoint) -> None:
    neutral: dict[str, Any] = {
        "top_p": 1.0,
        "top_k": -1,
        "presence_penalty": 0.0,
        "logit_bias": None,
        "user": "me",
    }
    neutral |= dict.fromkeys(("n", "stream", "logprobs", "top_logprobs", "tools", "stop"))
    neutral |= {"chat_template_kwargs": {}, "min_tokens": 0, "ignore_eos": False, "metadata": {}}
    neutral |= {"temperature": 0, "top_p": 0.9, "response_format": {"type": "text"}}
    neutral |= {"store": False, "parallel_tool_calls": True}
    reply = await ask(served, CHAT | neutral | {"tools": [], "tool_choice": "none"})
    assert reply.status_code == 200, reply.text
    assert (await ask(served, "", "/models", "GET")).json()["data"][0]["id"] == "main@0"
    assert (await ask(served, "", "/models/main@0", "GET")).json()["id"] == "main@0"
    assert served.seat.counts.failed == 0 == served.seat.counts.in_flight
