"""Requests as values: any input becomes a request, or one line that names its mistake."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.serving import HI, JSON
from unstable.serving.requests import ApiError, ChatRequest, TextRequest, json_object, read_request

CHAT = {"model": "main@0", "messages": HI, "max_tokens": 3}
TEXT = {"model": "base", "prompt": "hi", "max_tokens": 3}
NAMES = sorted({*ChatRequest.model_fields, *TextRequest.model_fields, "top_p", "logit_bias"})


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4), st.booleans())
def test_request_is_parsed_or_gives_one_line_error(change: dict[str, Any], is_chat: bool) -> None:
    kind, base = (ChatRequest, CHAT) if is_chat else (TextRequest, TEXT)
    try:
        request = read_request(kind, json_object(json.dumps({**base, **change}).encode()))
    except ApiError as error:
        assert error.status == 400 and len(error.message.splitlines()) <= 1
        json.dumps(error.body()).encode()
    else:
        assert isinstance(request, kind) and request.n >= 1


def test_chat_is_converted_for_template() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "2"},
    ]
    request = read_request(ChatRequest, {**CHAT, "messages": messages})
    assert request.characters == 4 * 16 + len("Be short." + "one\ntwo" + '{"a": 1}' + "2")
    function = {"name": "add", "arguments": {"a": 1}}
    assert request.chat == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "one\ntwo"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": function}],
        },
        {"role": "tool", "content": "2"},
    ]
