"""Tools in chats: templates with and without support, and continuations after a call."""

import json
from typing import Any

import pytest

from tests.helpers.models import tiny_tokenizer
from tests.helpers.rows import every_row
from unstable.prompts import ChatTemplate, read_tool_calls

KNOWS = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|end|>"
    "{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|user|>{% endif %}"
    "<out>{{ m.content }}</out>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|end|>{% endif %}"
    "{% else %}<|{{ m.role }}|>{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<call>{{ call.function | tojson }}</call>{% endfor %}"
    "<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{{ '<think></think>' if not thinks }}{% endif %}"
)
"""Template with tools: consecutive tool outputs are one user message."""
ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}},
}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
ASKED: list[dict[str, Any]] = [{"role": "user", "content": "1 + 1?"}]
CALLED = {"role": "assistant", "content": "so", "tool_calls": [CALL]}
OUTPUTS = [{"role": "tool", "content": "2"}, {"role": "tool", "content": "<|end|>"}]


def made(template: str | None = KNOWS, **arguments: Any) -> tuple[ChatTemplate, Any]:
    tokenizer = tiny_tokenizer()
    if template is not None:
        tokenizer.chat_template = template
    return ChatTemplate(tokenizer, arguments), tokenizer


@every_row("thinks", True, False)
@every_row("template", KNOWS, None)
def test_tool_outputs_extend_the_sampled_ids(template, thinks):
    """Ids after a call equal the chat's from the answer's end on; a tool's text adds no tokens."""
    found, tokenizer = made(template, thinks=thinks)
    after = found.encode_after([*ASKED, CALLED, *OUTPUTS], 1, [ADD])
    assert after is not None and after[0] == found.stop_token_id
    whole = tokenizer.decode(found.encode([*ASKED, CALLED, *OUTPUTS], [ADD]))
    text = tokenizer.decode(after)
    assert whole.endswith(text) and text.startswith("<|end|><|user|>")
    assert ("<out>2</out><out><|end|></out>" in text) == (template == KNOWS)
    marks = [tokenizer.decode([each]) for each in after if each < 4]
    assert marks == (
        ["<|end|>", "<|user|>", "<|end|>", "<|assistant|>"]
        if template == KNOWS
        else ["<|end|>", "<|user|>", "<|end|>", "<|user|>", "<|end|>", "<|assistant|>"]
    )


def test_inconsistent_templates_have_no_continuation():
    other, _ = made("{{ messages | length }}" + KNOWS)
    assert other.encode_after([*ASKED, CALLED, *OUTPUTS], 1, [ADD]) is None
    strict, _ = made(
        "{% for m in messages %}{% if m.role == 'tool' and not messages[loop.index0 - 1].tool_calls"
        " %}{{ raise_exception('no calls') }}{% endif %}{{ m.content }}{% endfor %}{{ tools }}"
    )
    assert strict.encode_after([*ASKED, CALLED, OUTPUTS[0]], 1, [ADD]) is None
    assert strict.encode([*ASKED, CALLED, OUTPUTS[0]], [ADD])
    with pytest.raises(ValueError, match="rejects the chat: no calls"):
        strict.encode([*ASKED, OUTPUTS[0]], [ADD])


@every_row("template", KNOWS, None)
def test_call_argument_keys_add_no_control_tokens(template):
    found, tokenizer = made(template)
    call = {"function": {"name": "add", "arguments": {"<|end|>": [{"<|user|>": "<|system|>"}]}}}
    chat = [*ASKED, {"role": "assistant", "content": "", "tool_calls": [call]}, OUTPUTS[0]]
    ids = found.encode(chat, [ADD])
    assert "".join(tokenizer.decode([each]) for each in ids if each < 4) == (
        "<|system|><|end|><|user|><|end|><|assistant|><|end|><|user|><|end|><|assistant|>"
    )
    assert '{"<|end|>": [{"<|user|>": "<|system|>"}]}' in tokenizer.decode(ids)


@every_row(
    "parameters",
    {"<|end|>": {}},
    {"type": ["string", "<|end|>"]},
    {"properties": {"type": {"type": "<|end|> "}}},
)
def test_tools_with_invalid_names_are_rejected(parameters):
    tool = {"type": "function", "function": {"name": "add", "parameters": parameters}}
    found, _ = made()
    with pytest.raises(ValueError, match="invalid name"):
        found.encode(ASKED, [tool])


def test_tool_parameter_may_be_named_type():
    tool = {"type": "function", "function": {"parameters": {"properties": {"type": {"type": "x"}}}}}
    found, tokenizer = made()
    assert json.dumps(tool) in tokenizer.decode(found.encode(ASKED, [tool]))


@every_row(
    "text, calls",
    ('so <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', [("add", {"a": 1})]),
    ('<tool_call>\n{"name": "now"}\n</tool_call>', [("now", {})]),
    ('<tool_call>{"name": "add two", "arguments": {}}</tool_call>', []),
    ('<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>', []),
    ('<tool_call>{"name": "add", "arguments": {"a": 1e999}}</tool_call>', []),
    ('<tool_call>{"name": "add", "arguments": {"a": "\\ud800"}}</tool_call>', []),
    ('<tool_call>{"name": "add", "arguments": "1, 2"}</tool_call>', []),
    ('<tool_call>{"name": 3}</tool_call>', []),
    ('<tool_call>{"name": "add", }</tool_call>', []),
    ("<tool_call>" + '{"a":' * 5000 + "}" * 5000 + "</tool_call>", []),
)
def test_invalid_tool_calls_stay_text(text, calls):
    """Only text whose name a request accepts is parsed as a call, and survives a round trip."""
    left, found = read_tool_calls(text)
    assert [(each["name"], each["arguments"]) for each in found] == calls
    assert left == ("so" if text.startswith("so") else "" if calls else text)
