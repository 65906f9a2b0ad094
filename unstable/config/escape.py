"""Escaping of text for terminals and logs: control characters are shown, not obeyed."""

import os
import re

MAX_LINE = 1000
"""Most characters of an error in one line."""

# Control characters except line feed and tab; also bidirectional marks, line separators and
# surrogates.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


_SECRET_VARIABLES = {"OPENAI_API_KEY", "HF_TOKEN", "WANDB_API_KEY"}
_LEAST_SECRET = 8
"""Fewest characters of a secret; shorter values are placeholders such as EMPTY."""


def keep_secret(variable: str) -> None:
    """Hide the value of this environment variable in all text that is shown or written later."""
    _SECRET_VARIABLES.add(variable)


def spare_loopback() -> None:
    """Exempt requests to this machine, and the keys in them, from the environment's proxy."""
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    hosts = [*filter(None, known.split(",")), "localhost", "127.0.0.1", "::1"]
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys(hosts))


def escape_control(text: str) -> str:
    r"""Return the text with control characters as JSON escapes; line feeds and tabs stay.

    Values of variables given to `keep_secret` are replaced by the variables' names, since an
    endpoint may return what it received.

    >>> escape_control("\x1b[2J")
    '\\u001b[2J'
    """
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", hide_secrets(text))


def has_secrets() -> bool:
    """Return whether any variable given to `keep_secret` holds a key."""
    return any(len(os.environ.get(name, "")) >= _LEAST_SECRET for name in _SECRET_VARIABLES)


def hide_secrets(text: str) -> str:
    """Return the text with values of variables given to `keep_secret` replaced by their names."""
    for variable in _SECRET_VARIABLES:
        secret = os.environ.get(variable, "")
        if len(secret) >= _LEAST_SECRET and secret in text:
            text = text.replace(secret, f"<{variable}>")
    return text


def one_line(text: str) -> str:
    """Return the text as one line of at most `MAX_LINE` characters, control characters escaped."""
    line = escape_control(" ".join(text.split()))
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 1]}…"
