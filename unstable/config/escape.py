"""Text as a terminal and a log may have it: control characters are shown, not obeyed."""

import re

MAX_LINE = 1000
"""Characters of an error in one line."""

# All but line feed and tab; with them what turns the order of writing, ends a line or is half a
# character.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escape_control(text: str) -> str:
    r"""The text with each control character as JSON writes it; line feeds and tabs stay.

    >>> escape_control("\x1b[2J")
    '\\u001b[2J'
    """
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def one_line(text: str) -> str:
    """The text in one line of at most `MAX_LINE` characters, control characters spelled out."""
    line = escape_control(" ".join(text.split()))
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 1]}…"
