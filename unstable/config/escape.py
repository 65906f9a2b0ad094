"""Text as a terminal and a log may have it: control characters are shown, not obeyed."""

import os
import re

MAX_LINE = 1000
"""Characters of an error in one line."""

# All but line feed and tab; with them what turns the order of writing, ends a line or is half a
# character.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


_SECRET_VARIABLES = {"OPENAI_API_KEY", "HF_TOKEN", "WANDB_API_KEY"}
_LEAST_SECRET = 8
"""Characters of a secret; what is shorter is a word that stands in for one, such as EMPTY."""


def keep_secret(variable: str) -> None:
    """From now on no text that is shown or written holds what this environment variable holds."""
    _SECRET_VARIABLES.add(variable)


def spare_loopback() -> None:
    """Keep requests to this machine, and the keys in them, from the proxy of the environment."""
    known = os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")
    hosts = [*filter(None, known.split(",")), "localhost", "127.0.0.1", "::1"]
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys(hosts))


def escape_control(text: str) -> str:
    r"""The text with each control character as JSON writes it; line feeds and tabs stay.

    Keys that `keep_secret` names are replaced by their variables' names: an endpoint may send back
    what it was sent.

    >>> escape_control("\x1b[2J")
    '\\u001b[2J'
    """
    return _CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", hide_secrets(text))


def has_secrets() -> bool:
    """Return whether any variable that `keep_secret` names holds a key here."""
    return any(len(os.environ.get(name, "")) >= _LEAST_SECRET for name in _SECRET_VARIABLES)


def hide_secrets(text: str) -> str:
    """The text with the keys that `keep_secret` names replaced by their variables' names."""
    for variable in _SECRET_VARIABLES:
        secret = os.environ.get(variable, "")
        if len(secret) >= _LEAST_SECRET and secret in text:
            text = text.replace(secret, f"<{variable}>")
    return text


def one_line(text: str) -> str:
    """The text in one line of at most `MAX_LINE` characters, control characters spelled out."""
    line = escape_control(" ".join(text.split()))
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 1]}…"
