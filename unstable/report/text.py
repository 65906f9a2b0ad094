"""Values as JSON whose texts move nobody's cursor and hide nothing."""

import json
import re
from typing import Any

from unstable.config import escape_control

_ESCAPED = re.compile(r"\\[ubfr]")
"""How JSON writes the control characters that it may not hold, line feeds and tabs aside."""


def as_json(value: object) -> str:
    r"""Strict JSON; control characters in texts are spelled out, as a reader then sees them.

    >>> as_json({"said": "\x1b[2J"})
    '{"said":"\\\\u001b[2J"}'
    """
    text = _dumped(value)
    if _ESCAPED.search(text) is None and escape_control(text) == text:
        return text  # which is nearly always so, and to spell out takes ten times as long
    return _dumped(_spelled(value))


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _spelled(value: Any) -> Any:
    if isinstance(value, str):
        return escape_control(value)
    if isinstance(value, dict):
        return {escape_control(name): _spelled(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(each) for each in value]
    return value
