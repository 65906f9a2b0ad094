"""The action in an answer: what a parser finds beside a model's reasoning."""

import re
from collections.abc import Callable
from typing import NamedTuple

from unstable.config.plugins import load_target

_MAX_UNPARSED = 200  # characters of an answer without an action that are passed on as one
_BRACKETS = re.compile(r"\[[^\[\]]*[^\[\]\s][^\[\]]*\]")
_BOXED = re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}")


def _in_brackets(text: str) -> str | None:
    found = _BRACKETS.findall(text)
    return found[-1] if found else None


def _boxed(text: str) -> str | None:
    found = _BOXED.findall(text)
    content = found[-1].strip() if found else ""
    if not content:
        return None
    return content if "[" in content else f"[{content}]"


def _raw(text: str) -> str | None:
    return text or None


def _exact(text: str) -> str | None:
    return text if _BRACKETS.fullmatch(text) else None


def _bare(text: str) -> str | None:
    return f"[{text}]" if text and not re.search(r"[\[\]\n]", text) else None


def _plain(text: str) -> str | None:
    return _exact(text) or _bare(text)


PARSERS: dict[str, Callable[[str], str | None]] = {
    "brackets": _in_brackets,
    "exact": _exact,
    "bare": _bare,
    "plain": _plain,
    "boxed": _boxed,
    "raw": _raw,
}
_STRICT = {
    "exact",
    "bare",
    "plain",
}  # what they do not read is no action, even if an env finds one in it
_BRACKETING = {"brackets", "boxed", *_STRICT}


class Action(NamedTuple):
    """What is given to the env, and whether the parser found it in the answer."""

    text: str
    formatted: bool


def in_form(action: str, form: str) -> str:
    """An action in brackets as an env of that form takes it.

    >>> in_form("[3]", "bare")
    '3'
    """
    return action[1:-1].strip() if form == "bare" and _BRACKETS.fullmatch(action) else action


def parse_action(
    parser: str, text: str, *, reasoning: bool = False, form: str = "brackets"
) -> Action:
    """The action in an answer, by a built-in parser or a `module:function(text) -> str | None`.

    `form` is how the env takes an action: a built-in parser but `raw` gives it so.

    Where there is none, the answer itself on one short line, or nothing if it is `reasoning` or the
    parser is strict (exact, bare, plain): there, whatever stands beside an action makes it none.
    """
    answer = strip_reasoning(text).strip()
    action = (PARSERS.get(parser) or load_target(parser))(answer)
    if action is not None:
        return Action(in_form(action, form) if parser in _BRACKETING else action, True)
    if reasoning or parser in _STRICT:
        return Action("", False)
    return Action(" ".join(answer.split())[:_MAX_UNPARSED], False)


def strip_reasoning(text: str) -> str:
    """The text without `<think>...</think>`, also where either of the two tags is missing."""
    answer = text.rpartition("</think>")[2]
    return answer.partition("<think>")[0]
