"""Anthropic's Messages API: https://docs.anthropic.com/en/api/messages.

Settings of Anthropic's own models and services, such as `thinking` and `context_management`, are
ignored; others that chat completions lack are refused.
"""

import json
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from unstable.config import shown
from unstable.serving.dialects import listed, mapping, passed, text_parts
from unstable.serving.requests import ApiError

_OWN = {
    *("max_tokens", "messages", "system", "tools", "tool_choice", "stop_sequences"),
    "output_config",
}
_IGNORED = {"metadata", "thinking", "service_tier", "container", "context_management"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_STOPS = {"length": "max_tokens", "tool_calls": "tool_use"}
_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class Messages:
    """Translator of `/v1/messages`."""

    path, count_path = "/v1/messages", "/v1/messages/count_tokens"
    count_lacks = {"max_tokens": 1}
    names = {"stop": "stop_sequences"}

    def chat(self, given: Mapping[str, Any]) -> dict[str, Any]:
        if "max_tokens" not in given:
            raise ApiError(400, "max_tokens: missing; give the most tokens of the answer")
        if "format" in mapping(given.get("output_config", {}), "output_config"):
            message = "output_config.format: unsupported; remove it or force a tool"
            raise ApiError(400, message, param="output_config")
        asked: dict[str, Any] = {
            **passed(given, {*_OWN, *_IGNORED}),
            "max_tokens": given["max_tokens"],
            "messages": [*_system(given.get("system")), *_messages(given.get("messages"))],
            "stop": given.get("stop_sequences", []),
            "tools": [_tool(each) for each in _objects(given.get("tools", []), "tools")],
        }
        return asked | (_choice(given["tool_choice"]) if "tool_choice" in given else {})

    def whole(self, given: Mapping[str, Any], reply: Mapping[str, Any]) -> dict[str, Any]:
        (choice,) = reply["choices"]
        said, content = choice["message"], list[dict[str, Any]]()
        if said["content"]:
            content.append({"type": "text", "text": said["content"]})
        content += [
            {**_use(call), "input": json.loads(call["function"]["arguments"])}
            for call in said.get("tool_calls", ())
        ]
        tokens = _usage(reply["usage"])
        return {**_message(reply["model"], content), **_end(choice), "usage": tokens}

    async def events(
        self, given: Mapping[str, Any], pieces: AsyncIterator[Mapping[str, Any]]
    ) -> AsyncIterator[dict[str, Any]]:
        message = _message(given["model"], [])
        none = {"input_tokens": 0, "output_tokens": 0}
        start = {**message, "stop_reason": None, "stop_sequence": None, "usage": none}
        yield {"type": "message_start", "message": start}
        blocks, end, is_open = 0, dict[str, Any](), False
        async for piece in pieces:
            if "error" in piece:
                error = {"type": "api_error", "message": piece["error"]["message"]}
                yield {"type": "error", "error": error}
                return
            if piece.get("usage"):
                tokens = _usage(piece["usage"])
                yield {"type": "message_delta", "delta": end, "usage": tokens}
                continue
            (choice,) = piece["choices"]
            if text := choice["delta"].get("content"):
                if not is_open:
                    yield _block_start(blocks, {"type": "text", "text": ""})
                    is_open = True
                yield _delta(blocks, {"type": "text_delta", "text": text})
            if choice["finish_reason"]:
                end = _end(choice)
                if is_open:
                    yield {"type": "content_block_stop", "index": blocks}
                    blocks += 1
                for place, call in enumerate(choice["delta"].get("tool_calls", ()), blocks):
                    yield _block_start(place, {**_use(call), "input": {}})
                    part = call["function"]["arguments"]
                    yield _delta(place, {"type": "input_json_delta", "partial_json": part})
                    yield {"type": "content_block_stop", "index": place}
        yield {"type": "message_stop"}

    def counted(self, tokens: int) -> dict[str, Any]:
        return {"input_tokens": tokens}

    def error(self, error: ApiError) -> dict[str, Any]:
        usual = "invalid_request_error" if error.status < 500 else "api_error"
        kind = _ERRORS.get(error.status, usual)
        return {"type": "error", "error": {"type": kind, "message": error.message}}


def _objects(given: Any, place: str) -> Sequence[Mapping[str, Any]]:
    """Return a list of JSON objects; raises `ApiError` for anything else."""
    return [mapping(each, place) for each in listed(given, place)]


def _system(given: Any) -> list[dict[str, Any]]:
    content = _text(given, "system")
    return [{"role": "system", "content": content}] if content else []


def _text(given: Any, place: str) -> Any:
    """Return a content as text or as text parts of chat completions."""
    return text_parts(given, place, {"text"})


def _messages(given: Any) -> Iterator[dict[str, Any]]:
    """Yield messages of chat completions: results of tools are messages of their own."""
    for number, message in enumerate(_objects(given, "messages")):
        place, content = f"messages.{number}.content", message.get("content")
        role = message.get("role")
        if isinstance(content, str):
            yield {"role": role, "content": content}
            continue
        blocks = _objects(content, place)
        if role == "assistant":
            yield _said(blocks, place)
            continue
        for block in blocks:
            if block.get("type") == "tool_result":
                output = _text(block.get("content") or "", place)
                yield {"role": "tool", "content": output, "tool_call_id": block.get("tool_use_id")}
        if rest := [block for block in blocks if block.get("type") != "tool_result"]:
            yield {"role": role, "content": _text(rest, place)}


def _said(blocks: Sequence[Mapping[str, Any]], place: str) -> dict[str, Any]:
    """Return an earlier answer, without its thoughts."""
    kept = [b for b in blocks if b.get("type") not in ("thinking", "redacted_thinking")]
    texts = _text([block for block in kept if block.get("type") != "tool_use"], place)
    message: dict[str, Any] = {"role": "assistant", "content": texts or ""}
    calls = [_called(block) for block in kept if block.get("type") == "tool_use"]
    return message | ({"tool_calls": calls} if calls else {})


def _called(use: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": use.get("name"), "arguments": json.dumps(use.get("input") or {})}
    return {"id": use.get("id"), "function": function}


def _tool(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("type", "custom") != "custom":
        kind = shown(given["type"])
        raise ApiError(400, f"tools: {kind} runs at Anthropic; remove it", param="tools")
    function = {name: given[name] for name in ("name", "description") if name in given}
    return {"type": "function", "function": {**function, "parameters": given.get("input_schema")}}


def _choice(given: Any) -> dict[str, Any]:
    kind = given.get("type") if isinstance(given, dict) else None
    if kind == "tool":
        chosen: Any = {"type": "function", "function": {"name": given.get("name")}}
    elif isinstance(kind, str) and kind in _CHOICES:
        chosen = _CHOICES[kind]
    else:
        raise ApiError(400, "tool_choice: use auto, any, tool or none", param="tool_choice")
    one = given.get("disable_parallel_tool_use") is True
    return {"tool_choice": chosen, **({"parallel_tool_calls": False} if one else {})}


def _message(model: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    head = {"id": f"msg_{uuid.uuid4().hex}", "type": "message", "role": "assistant"}
    return {**head, "model": model, "content": content}


def _use(call: Mapping[str, Any]) -> dict[str, Any]:
    name = call["function"]["name"]
    return {"type": "tool_use", "id": call["id"], "name": name}


def _end(choice: Mapping[str, Any]) -> dict[str, Any]:
    stop = choice["stop_reason"]
    usual = "end_turn" if stop is None else "stop_sequence"
    reason = _STOPS.get(choice["finish_reason"], usual)
    return {"stop_reason": reason, "stop_sequence": stop if reason == usual else None}


def _usage(given: Mapping[str, int]) -> dict[str, int]:
    return {"input_tokens": given["prompt_tokens"], "output_tokens": given["completion_tokens"]}


def _block_start(index: int, block: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def _delta(index: int, delta: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}
