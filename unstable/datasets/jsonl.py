"""Examples of a person's own, in a JSONL file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from unstable.config import ConfigError, GameConfig
from unstable.datasets.examples import Example, answer_tokens, make_example
from unstable.prompts import PromptBuilder, write_answer
from unstable.records.files import read_lines
from unstable.types import Observation

_ROLES = ("system", "user", "assistant")


def jsonl_examples(path: Path, game: GameConfig, prompts: PromptBuilder) -> list[Example]:
    """A person's own examples of a game, one JSON object a line, in either of two forms.

    {"observation": text, "action": text}: the text as a player of the game sees it, and the action,
    written as the game's parser reads it. {"messages": [{"role": ..., "content": ...}, ...]}: a
    chat that ends with the answer, taken as it is. Raises `ConfigError` naming file and line.
    """
    return [_own_example(place, row, game, prompts) for place, row in read_lines(path)]


def _own_example(
    place: str, row: dict[str, Any], game: GameConfig, prompts: PromptBuilder
) -> Example:
    if row.keys() == {"messages"}:
        return _chat_example(place, row["messages"], game, prompts)
    if row.keys() != {"observation", "action"} or not all(map(_is_text, row.values())):
        raise ConfigError(
            f"{place}: has {', '.join(row) or 'no keys'}; give the texts observation and action, "
            "or messages"
        )
    # Games files record a model's observation with the request, which the prompt adds.
    text = row["observation"].removesuffix(prompts.style.request).rstrip()
    observation = Observation(seat=0, rules=text, events=[], board="", notice="", brief=text)
    try:
        answer = write_answer(game, prompts, row["action"])
        return replace(make_example(game, prompts, observation, answer), seat=None)
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from None


def _chat_example(place: str, messages: Any, game: GameConfig, prompts: PromptBuilder) -> Example:
    if not (isinstance(messages, list) and len(messages) > 1 and all(map(_is_message, messages))):
        raise ConfigError(
            f"{place}: messages needs two or more, each a content and a role of {', '.join(_ROLES)}"
        )
    *chat, last = messages
    if last["role"] != "assistant":
        raise ConfigError(
            f"{place}: the last of messages is the {last['role']}'s; end with assistant"
        )
    return Example(
        env=game.key,
        seat=None,
        prompt=chat[-1]["content"],
        answer=last["content"],
        tokens=answer_tokens(prompts, prompts.encode_chat(chat), last["content"]),
    )


def _is_text(value: Any) -> bool:
    """Whether it is a text with something in it; half of a surrogate pair is no text."""
    return isinstance(value, str) and bool(value.strip()) and _encodes(value)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"role", "content"}
        and value["role"] in _ROLES
        and _is_text(value["content"])
    )
