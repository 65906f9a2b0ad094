"""OpenAI's Responses API: https://platform.openai.com/docs/api-reference/responses.

Nothing is stored: each request has the whole conversation as its `input`. Settings that do not
change which tokens a model may sample, such as `reasoning` and `store`, are ignored.
"""

import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from unstable.config import shown
from unstable.serving.dialects import listed, mapping, passed, text_parts
from unstable.serving.requests import ApiError

_OWN = {"input", "instructions", "max_output_tokens", "tools", "tool_choice", "text", "include"}
_PASSED = {"parallel_tool_calls", "top_logprobs"}
_IGNORED = {
    "reasoning",
    "truncation",
    "max_tool_calls",
    "prompt_cache_retention",
    "client_metadata",
}
_STORED = {"previous_response_id", "conversation", "prompt"}
_ECHOED = ("instructions", "max_output_tokens", "temperature", "metadata")
_LOGPROBS = "message.output_text.logprobs"


class Responses:
    """Translator of `/v1/responses`."""

    path, count_path = "/v1/responses", "/v1/responses/input_tokens"
    count_lacks = dict[str, Any]()
    names = {
        **{"messages": "input", "max_completion_tokens": "max_output_tokens"},
        "response_format": "text.format",
    }

    def chat(self, given: Mapping[str, Any]) -> dict[str, Any]:
        for name in sorted(_STORED & given.keys()):
            raise ApiError(400, f"{name}: nothing is stored; send all as input", param=name)
        if given.get("background"):
            raise ApiError(400, "background: unsupported; remove it", param="background")
        asked = passed(given, {*_OWN, *_IGNORED, *_PASSED, "background"})
        asked |= {name: given[name] for name in sorted(_PASSED & given.keys())}
        first = given.get("instructions", "")
        head = [{"role": "system", "content": first}] if first != "" else []
        asked["messages"] = [*head, *_messages(given.get("input"))]
        if "max_output_tokens" in given:
            asked["max_completion_tokens"] = given["max_output_tokens"]
        asked["tools"] = [*_tools(given.get("tools", []))]
        if "tool_choice" in given:
            asked["tool_choice"] = _choice(given["tool_choice"])
        if (form := mapping(given.get("text", {}), "text").get("format")) is not None:
            asked["response_format"] = _form(mapping(form, "text.format"))
        if _LOGPROBS in listed(given.get("include", []), "include") or given.get("top_logprobs"):
            asked["logprobs"] = True
        return asked

    def whole(self, given: Mapping[str, Any], reply: Mapping[str, Any]) -> dict[str, Any]:
        (choice,) = reply["choices"]
        said, output = choice["message"], list[dict[str, Any]]()
        calls = said.get("tool_calls", ())
        if said["content"] or not calls:
            part = _part(said["content"], _tokens(choice))
            output.append(_item(_named("msg"), [part], _is_cut(choice)))
        output += [_call(_named("fc"), call, given.get("tools", ())) for call in calls]
        response = _response(given, _named("resp"), reply["model"])
        return response | _finished(choice, output, reply["usage"])

    async def events(
        self, given: Mapping[str, Any], pieces: AsyncIterator[Mapping[str, Any]]
    ) -> AsyncIterator[dict[str, Any]]:
        number = 0
        async for name, each in _ResponseStream(given).events(pieces):
            yield {"type": name, "sequence_number": number, **each}
            number += 1

    def counted(self, tokens: int) -> dict[str, Any]:
        return {"object": "response.input_tokens", "input_tokens": tokens}

    def error(self, error: ApiError) -> dict[str, Any]:
        return error.body()


class _ResponseStream:
    """The events of one answer, and what it has so far."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self._response = _response(given, _named("resp"), given["model"])
        self._output = list[dict[str, Any]]()
        self._item = _named("msg")
        self._text, self._logprobs, self._unsent = "", list[Any](), list[Any]()
        self._is_open = False

    async def events(
        self, pieces: AsyncIterator[Mapping[str, Any]]
    ) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        yield "response.created", {"response": self._response}
        yield "response.in_progress", {"response": self._response}
        end: Mapping[str, Any] = {}
        async for piece in pieces:
            if "error" in piece:
                said = piece["error"]
                yield "error", {name: said[name] for name in ("message", "param", "code")}
                return
            if piece.get("usage"):
                finished = self._response | _finished(end, self._output, piece["usage"])
                yield f"response.{finished['status']}", {"response": finished}
                continue
            (choice,) = piece["choices"]
            for each in self._added(choice):
                yield each
            if choice["finish_reason"]:
                end = choice
                for each in self._ended(choice):
                    yield each

    def _added(self, choice: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        self._unsent += _tokens(choice)  # some tokens have no text of their own
        if not (text := choice["delta"].get("content")):
            return
        if not self._is_open:
            yield from self._opened()
        self._text += text
        new, self._unsent = self._unsent, []
        self._logprobs += new
        yield "response.output_text.delta", {**self._place, "delta": text, "logprobs": new}

    def _opened(self) -> Iterator[tuple[str, dict[str, Any]]]:
        self._is_open = True
        item = _item(self._item, [], is_cut=False) | {"status": "in_progress"}
        yield "response.output_item.added", {"output_index": 0, "item": item}
        yield "response.content_part.added", {**self._place, "part": _part("", [])}

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self._item, "output_index": 0, "content_index": 0}

    def _ended(self, choice: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        calls = choice["delta"].get("tool_calls", ())
        if not (self._is_open or calls):
            yield from self._opened()
        if self._is_open:
            self._logprobs += self._unsent
            part = _part(self._text, self._logprobs)
            told = {"text": self._text, "logprobs": self._logprobs}
            yield "response.output_text.done", {**self._place, **told}
            yield "response.content_part.done", {**self._place, "part": part}
            self._output.append(_item(self._item, [part], _is_cut(choice)))
            yield "response.output_item.done", {"output_index": 0, "item": self._output[-1]}
        for call in calls:
            index, item = len(self._output), _call(_named("fc"), call, self._response["tools"])
            begun = {**item, "arguments": "", "status": "in_progress"}
            place = {"item_id": item["id"], "output_index": index}
            yield "response.output_item.added", {"output_index": index, "item": begun}
            name, text = "response.function_call_arguments", item["arguments"]
            yield f"{name}.delta", {**place, "delta": text}
            yield f"{name}.done", {**place, "name": item["name"], "arguments": text}
            yield "response.output_item.done", {"output_index": index, "item": item}
            self._output.append(item)


def _messages(given: Any) -> list[dict[str, Any]]:
    """Return the items of an input as messages; an answer's text and calls become one message."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    found: list[dict[str, Any]] = []
    for number, each in enumerate(listed(given, "input")):
        place = f"input.{number}"
        item = mapping(each, place)
        kind = item.get("type") or "message"
        if kind == "message":
            found.append({"role": item.get("role"), "content": _text(item.get("content"), place)})
        elif kind == "function_call":
            if not found or found[-1]["role"] != "assistant":
                found.append({"role": "assistant", "content": ""})
            name = _full_name(item.get("namespace"), item.get("name"))
            function = {"name": name, "arguments": item.get("arguments")}
            call = {"id": item.get("call_id"), "function": function}
            found[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            output = _text(item.get("output"), place)
            found.append({"role": "tool", "content": output, "tool_call_id": item.get("call_id")})
        elif kind != "reasoning":
            raise ApiError(400, f"{place}: unsupported item type {shown(kind)}", param="input")
    return found


def _text(given: Any, place: str) -> Any:
    """Return a content as text or as text parts of chat completions."""
    return text_parts(given, place, {"input_text", "output_text", "text"})


def _full_name(namespace: Any, name: Any) -> Any:
    """Return the name of a function in chat completions, which lack namespaces."""
    return f"{namespace}__{name}" if namespace else name


def _tools(given: Any) -> Iterator[dict[str, Any]]:
    """Yield tools of chat completions, including those of namespaces."""
    for tool in listed(given, "tools"):
        if mapping(tool, "tools").get("type") != "namespace":
            yield _tool(tool)
            continue
        for each in (mapping(inner, "tools") for inner in listed(tool.get("tools"), "tools")):
            yield _tool({**each, "name": _full_name(tool.get("name"), each.get("name"))})


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        kind = shown(tool.get("type"))
        raise ApiError(400, f"tools: unsupported type {kind}; use functions", param="tools")
    names = ("name", "description", "parameters")
    return {"type": "function", "function": {name: tool[name] for name in names if name in tool}}


def _choice(given: Any) -> Any:
    if isinstance(given, dict) and given.get("type") == "function":
        return {"type": "function", "function": {"name": given.get("name")}}
    return given


def _form(given: Mapping[str, Any]) -> dict[str, Any]:
    if given.get("type") != "json_schema":
        return {"type": given.get("type")}
    return {"type": "json_schema", "json_schema": {"schema": given.get("schema")}}


def _named(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


def _response(given: Mapping[str, Any], name: str, model: str) -> dict[str, Any]:
    """Return a response that has begun, with the settings of its request."""
    settings = {field: given.get(field) for field in _ECHOED}
    return {
        **{"id": name, "object": "response", "created_at": int(time.time()), "model": model},
        **{"status": "in_progress", "error": None, "incomplete_details": None, "usage": None},
        **{"output": [], "top_p": None, "previous_response_id": None, **settings},
        "parallel_tool_calls": given.get("parallel_tool_calls", True),
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": given.get("tools", []),
    }


def _is_cut(choice: Mapping[str, Any]) -> bool:
    return choice["finish_reason"] == "length"


def _finished(
    choice: Mapping[str, Any], output: list[dict[str, Any]], usage: Mapping[str, int]
) -> dict[str, Any]:
    """Return the fields of a response that its end decides."""
    is_cut = _is_cut(choice)
    return {
        "status": "incomplete" if is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        "output": output,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        },
    }


def _item(name: str, content: list[dict[str, Any]], is_cut: bool) -> dict[str, Any]:
    status = "incomplete" if is_cut else "completed"
    head = {"id": name, "type": "message", "role": "assistant"}
    return {**head, "status": status, "content": content}


def _part(text: str, logprobs: list[Any]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def _tokens(choice: Mapping[str, Any]) -> list[Any]:
    """Return the log-probabilities of a choice's tokens; empty if they were not requested."""
    return (choice.get("logprobs") or {}).get("content") or []


def _call(item: str, call: Mapping[str, Any], tools: Any) -> dict[str, Any]:
    """Return a call of one of a request's tools, with the namespace of its function, if any."""
    function = call["function"]
    called = {"name": function["name"]}
    for space in (tool for tool in tools if tool["type"] == "namespace"):
        for name in (inner.get("name") for inner in space["tools"]):
            if _full_name(space["name"], name) == function["name"]:
                called = {"name": name, "namespace": space["name"]}
    head = {"id": item, "call_id": call["id"], "type": "function_call", "status": "completed"}
    return {**head, **called, "arguments": function["arguments"]}
