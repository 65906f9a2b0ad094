"""Conversion of chats, which are messages and tools, into token ids by a chat template."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

from unstable.prompts.encoder import TextEncoder

Message = dict[str, Any]
"""`role`, `content`, and `tool_calls` of an assistant, in the format of OpenAI's API."""
_TOOLS = (
    "You may call these tools, one JSON object a line:\n{tools}\nTo call one, answer with its name "
    'and arguments between two tags:\n<tool_call>\n{{"name": "...", "arguments": {{...}}}}\n'
    "</tool_call>"
)
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
_MARK = "\ue000"  # private-use character, in no template
_NAMES = ("type", "role")  # keys whose values templates compare
_NAME = re.compile(r"[\w-]{0,64}")
_KEY = re.compile(r"[\w$.-]{1,64}")
_ARGUMENTS = "arguments"  # of a tool call; its keys and values are text
_CALLED = re.compile(r"[\w-]{1,64}")


class ChatTemplate:
    """The chat template of a model's tokenizer; texts in a chat never become control tokens."""

    def __init__(self, tokenizer: Any, arguments: dict[str, Any]) -> None:
        """Wrap a tokenizer; `arguments` are the template's, such as `enable_thinking`."""
        self._tokenizer = tokenizer
        self._arguments = arguments
        self.encoder = TextEncoder(tokenizer)

    @cached_property
    def knows_tools(self) -> bool:
        """True if the template renders tools; otherwise the first message describes them."""
        return "tools" in str(getattr(self._tokenizer, "chat_template", ""))

    @cached_property
    def has_system(self) -> bool:
        """True if the template renders a system message; templates of Gemma 1 and 2 refuse it."""
        chat = [{"role": "system", "content": _MARK}, {"role": "user", "content": "?"}]
        try:
            return _MARK in self._render(chat, ())
        except ValueError:
            return False

    def render(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> str:
        """Render a chat as text, up to the start of its answer.

        If the template does not support system messages, the system text is prepended to the first
        user message. Raises `ValueError` if the template refuses the chat.
        """
        if [each["role"] for each in messages[:2]] == ["system", "user"] and not self.has_system:
            system, user, *others = messages
            text = f"{system['content']}\n\n{user['content']}"
            messages = [{**user, "content": text}, *others]
        return self._render(messages, tools)

    def _render(self, messages: Sequence[Message], tools: Sequence[Any]) -> str:
        from jinja2 import TemplateError  # installed with the tokenizer's library

        given = {"tools": list(tools)} if tools else {}
        try:
            rendered: str = self._tokenizer.apply_chat_template(
                list(messages),
                tokenize=False,
                add_generation_prompt=True,
                **given,
                **self._arguments,
            )
        except TemplateError as error:
            raise ValueError(f"the model's chat template rejects the chat: {error}") from None
        return rendered

    def encode(self, messages: Sequence[Message], tools: Sequence[Any] = ()) -> list[int]:
        """Return the ids of a chat, up to the start of its answer.

        Raises `ValueError` if the template refuses the chat.
        """
        if not self.knows_tools:
            return self.encode_contents(without_tools(messages, tools))
        parts = (list(messages), list(tools))

        def whole(texts: Sequence[str]) -> str:
            left = iter(texts)
            return self.render(*(_with_texts(part, left) for part in parts))

        return self.encoder.encode([text for part in parts for text in _texts(part)], whole)

    def encode_contents(
        self,
        messages: Sequence[Message],
        render: Callable[[list[Message]], str] | None = None,
        encode: Callable[[str], list[int]] | None = None,
    ) -> list[int]:
        """Return the ids of messages that have only a role and a content, as in play.

        `render` replaces the template if given, and `encode` replaces `TextEncoder.ids`.
        """
        put = render or self.render

        def whole(texts: Sequence[str]) -> str:
            pairs = zip(messages, texts, strict=True)
            return put([{**message, "content": text} for message, text in pairs])

        return self.encoder.encode([message["content"] for message in messages], whole, encode)

    def encode_after(
        self, messages: Sequence[Message], answer: int, tools: Sequence[Any] = ()
    ) -> list[int] | None:
        """Return the ids of the chat after the message with index `answer`, which a model wrote.

        The first id ends the answer. None if the template renders the messages before `answer`
        differently once more messages follow: the earlier ids are then no prefix of this chat.
        """
        answer -= len(messages)  # from the end: a message about tools may be inserted first
        if not self.knows_tools:
            messages, tools = without_tools(messages, tools), ()
        begun, later = messages[:answer], list(messages[answer + 1 :])
        opened = self.render(begun, tools)

        def after(texts: Sequence[str]) -> str:
            shown = {"role": "assistant", "content": _MARK}
            chat = self.render([*begun, shown, *_with_texts(later, iter(texts))], tools)
            before, _, rest = chat.partition(_MARK)
            # The opening of an answer, such as an empty thought, may be dropped in a longer chat.
            return rest.lstrip() if before and opened.startswith(before) else ""

        texts = list(_texts(later))
        try:
            return self.encoder.encode(texts, after) if after(texts) else None
        except ValueError:  # tool outputs without their calls
            return None

    @cached_property
    def stop_token_id(self) -> int:
        """Id that the template appends to an answer, or the tokenizer's end of sequence if none."""
        chat = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
        text = self._tokenizer.apply_chat_template(chat, tokenize=False, **self._arguments)
        after = text.rpartition("!")[2].lstrip()
        return self.encoder.ids(after)[0] if after else self._tokenizer.eos_token_id


def without_tools(messages: Sequence[Message], tools: Sequence[Any]) -> list[Message]:
    """Rewrite a chat for a template without tools: descriptions, calls and outputs become text."""
    chat = list(map(_plain, messages))
    if tools:
        told = _TOOLS.format(tools="\n".join(json.dumps(tool, sort_keys=True) for tool in tools))
        if chat and chat[0]["role"] == "system":
            chat[0] = {**chat[0], "content": f"{chat[0]['content']}\n\n{told}"}
        else:
            chat.insert(0, {"role": "system", "content": told})
    return chat


def _plain(message: Message) -> Message:
    content = message.get("content") or ""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{content}\n</tool_response>"}
    calls = [json.dumps(call["function"]) for call in message.get("tool_calls") or ()]
    parts = [content, *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)]
    return {"role": message["role"], "content": "\n".join(filter(None, parts))}


def read_tool_calls(text: str) -> tuple[str, list[dict[str, Any]]]:
    """Split an answer into the text before its tool calls, and the calls.

    `read_tool_calls('<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>')` is
    `("", [{"name": "add", "arguments": {"a": 1}}])`. A malformed call stays text.
    """
    calls, first = [], None
    for found in _CALL.finditer(text):
        try:
            call = json.loads(found[1])
            json.dumps(call, ensure_ascii=False, allow_nan=False).encode()  # can be sent
        except (ValueError, RecursionError):
            continue
        name, arguments = call.get("name"), call.get("arguments") or {}
        if isinstance(name, str) and _CALLED.fullmatch(name) and isinstance(arguments, dict):
            calls.append({"name": name, "arguments": arguments})
            first = found.start() if first is None else first
    return (text if first is None else text[:first].rstrip()), calls


def _texts(value: Any, keys: bool = False) -> Iterator[str]:
    """Yield all texts in messages or tools, in order; with `keys`, keys of dicts are texts too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, keys)
    elif isinstance(value, dict):
        for key, each in value.items():
            if keys:
                yield key
            elif not _KEY.fullmatch(key):
                raise ValueError(f"{key[:80]!r}: invalid name")
            if keys or not _is_name(key, each):
                yield from _texts(each, keys or key == _ARGUMENTS)


def _with_texts(value: Any, texts: Iterator[str], keys: bool = False) -> Any:
    """Return the value with its texts replaced by `texts`, in order."""
    if isinstance(value, str):
        return next(texts)
    if isinstance(value, list):
        return [_with_texts(each, texts, keys) for each in value]
    if isinstance(value, dict) and keys:
        return {next(texts): _with_texts(each, texts, keys) for each in value.values()}
    if isinstance(value, dict):
        return {
            key: each if _is_name(key, each) else _with_texts(each, texts, key == _ARGUMENTS)
            for key, each in value.items()
        }
    return value


def _is_name(key: str, value: Any) -> bool:
    """Return whether templates compare the value; raises `ValueError` if it is malformed."""
    if key not in _NAMES or isinstance(value, dict):  # a tool may have a parameter called type
        return False
    for each in value if isinstance(value, list) else [value]:
        if isinstance(each, str) and not _NAME.fullmatch(each):
            raise ValueError(f"{key} = {each[:80]!r}: invalid name")
    return True
