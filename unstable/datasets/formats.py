"""Rows of data files in the formats of OpenAI, TRL, ShareGPT and Alpaca, as chats.

https://huggingface.co/docs/trl/dataset_formats describes most of them. Columns that are not trained
on, such as an id or a source, are ignored.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from unstable.config import ConfigError, shown
from unstable.records.files import read_lines

_ROLES = {
    **{"system": "system", "developer": "system"},
    **{"user": "user", "human": "user"},
    **{"assistant": "assistant", "gpt": "assistant", "model": "assistant"},
}
"""Roles by their names in other tools."""
_UNTRAINED = ("tool_calls", "function_call", "reasoning_content")
"""Parts of an answer other than its text."""
Chat = list[dict[str, str]]
"""Messages, each with a `role` and a `content`."""


class ChatTurns(NamedTuple):
    """A chat, and the indices of its answers that are trained on."""

    chat: Chat
    answers: list[int]


class Preference(NamedTuple):
    """A prompt with a better and a worse answer, or with one answer that is good or bad."""

    prompt: Chat
    chosen: str | None
    rejected: str | None


def read_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of a file of JSON lines or of one JSON list, each with its place.

    Raises `ConfigError` for anything else.
    """
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; give a JSONL file")
    with path.open("rb") as file:
        if not file.read(256).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
            yield from read_lines(path)
            return
    try:
        rows = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: invalid JSON ({error}); write one object per line") from None
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise ConfigError(f"{path}, row {number} = {shown(row)}: must be an object")
        yield f"{path}, row {number}", row


def turns_of(place: str, row: Mapping[str, Any]) -> ChatTurns | None:
    """Return a row's chat with the indices of the answers to learn; None if the row is no chat.

    All messages of the assistant are trained on, except messages of `weight` 0 and messages before
    the user's first one. Raises `ConfigError` for a chat that cannot be trained on.
    """
    if row.get("tools"):
        raise ConfigError(f"{place}: tools: tool calls are unsupported; remove the row")
    for name in ("messages", "conversations"):
        if name in row:
            return _turns(place, name, _system(row), row[name])
    if row.keys() >= {"prompt", "completion"}:
        prompt = [*_system(row), *messages_of(place, "prompt", row["prompt"], "user")]
        said = row["completion"]
        completion = said if isinstance(said, list) else [{"role": "assistant", "content": said}]
        return _turns(place, "completion", prompt, completion)
    if row.keys() >= {"instruction", "output"}:
        parts = [row["instruction"], row.get("input") or ""]
        if not all(isinstance(part, str) for part in parts):
            raise ConfigError(f"{place}: instruction and input must be strings")
        asked = "\n\n".join(filter(None, parts))
        answer = [{"role": "assistant", "content": row["output"]}]
        prompt = [*_system(row), *messages_of(place, "instruction", asked, "user")]
        return _turns(place, "output", prompt, answer)
    return None


def _turns(place: str, field: str, before: Chat, messages: Any) -> ChatTurns:
    chat = [*before, *messages_of(place, field, messages)]
    answers = [
        at
        for at, message in enumerate(messages, start=len(before))
        if chat[at]["role"] == "assistant"
        and any(each["role"] == "user" for each in chat[:at])
        and message.get("weight") not in (0, 0.0)
    ]
    if not answers:
        raise ConfigError(f"{place}: {field}: no assistant message to train on; add one")
    return ChatTurns(chat, answers)


def preference_of(place: str, row: Mapping[str, Any]) -> Preference | None:
    """Return a row's preference; None if the row is none. Raises `ConfigError` if it is invalid."""
    if row.keys() >= {"prompt", "completion", "label"}:
        *prompt, answer = _answered(place, row, "completion")
        good = row["label"]
        if not isinstance(good, bool):
            raise ConfigError(f"{place}: label = {shown(good)}: must be true or false")
        sides = (answer["content"], None) if good else (None, answer["content"])
        return Preference(prompt, *sides)
    if not row.keys() >= {"chosen", "rejected"} or "observation" in row:
        return None
    (*prompt, chosen), (*other, rejected) = (
        _answered(place, row, side) for side in ("chosen", "rejected")
    )
    if prompt != other:
        raise ConfigError(f"{place}: chosen and rejected have different prompts; use one prompt")
    if not prompt:
        raise ConfigError(f"{place}: no prompt; add prompt, or chats as chosen and rejected")
    return Preference(prompt, chosen["content"], rejected["content"])


def _answered(place: str, row: Mapping[str, Any], side: str) -> Chat:
    """Return prompt and answer as one chat; the answer's messages may repeat the prompt."""
    system, asked = _system(row), Chat()
    if "prompt" in row:
        asked = messages_of(place, "prompt", row["prompt"], "user")
    said = messages_of(place, side, row[side], "assistant")
    if said[-1]["role"] != "assistant":
        raise ConfigError(f"{place}: {side}: last message from {said[-1]['role']}, not assistant")
    repeated = next((each for each in ([*system, *asked], asked) if said[: len(each)] == each), [])
    return [*system, *asked, *said[len(repeated) :]]


def _system(row: Mapping[str, Any]) -> Chat:
    """Return the system message of a row that has it in a separate column."""
    text = row.get("system")
    return [{"role": "system", "content": text}] if is_text(text) else []


def messages_of(place: str, field: str, value: Any, role: str = "") -> Chat:
    """Return messages as `role` and `content`; with `role`, a text is one message of that role."""
    if role and isinstance(value, str):
        value = [{"role": role, "content": value}]
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{place}: {field} = {shown(value)}: must be a string or message list")
    return [_message(f"{place}: {field}.{at}", each) for at, each in enumerate(value)]


def _message(place: str, message: Any) -> dict[str, str]:
    if not isinstance(message, dict):
        raise ConfigError(f"{place} = {shown(message)}: must be an object with role and content")
    given = message.get("role", message.get("from"))
    role = _ROLES.get(given) if isinstance(given, str) else None
    if role is None:
        raise ConfigError(f"{place}.role = {shown(given)}: must be system, user or assistant")
    for name in _UNTRAINED:
        if message.get(name):
            raise ConfigError(f"{place}.{name}: unsupported; write it into content")
    content = message.get("content", message.get("value"))
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, dict)]
        texts = [text for text in parts if isinstance(text, str)]
        if len(texts) < len(content):
            raise ConfigError(f"{place}.content: only text parts are supported; use text")
        content = "\n".join(texts)
    if not is_text(content):
        raise ConfigError(f"{place}.content = {shown(content)}: must be non-empty UTF-8 text")
    return {"role": role, "content": content}


def is_text(value: Any) -> TypeGuard[str]:
    """Return whether a value is text that is not blank and can be encoded as UTF-8."""
    if not (isinstance(value, str) and value.strip()):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True
