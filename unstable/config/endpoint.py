"""Checks of endpoints, ours and others': address, key, token and parameters of a request."""

import ipaddress
import os
import re
from collections.abc import Collection, Mapping
from typing import Any
from urllib.parse import urlsplit

from unstable.config.base import ConfigError, shown
from unstable.config.escape import keep_secret

_TOKEN = re.compile(r"[!-~]+")
"""Text that a header can carry as one word."""


def check_keyless(variable: str | None, url: str, field: str = "base_url") -> None:
    """Raise `ValueError` if an endpoint's address or `api_key_env` may contain a key."""
    if variable is not None and not re.fullmatch(r"[A-Za-z_]\w*", variable):
        raise ValueError(
            "api_key_env: not the name of an environment variable; export the key in one and "
            "give its name"
        )
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query:
        raise ValueError(
            f"{field}: contains a user name, password or query, which the run would record; "
            "export the key in the variable that api_key_env names and remove it from the URL"
        )


def check_extra(extra: Mapping[str, Any]) -> None:
    """Raise `ValueError` if `extra` sets parameters of a chat that are not free to choose."""
    for name in ("model", "messages", "stream", "n"):
        if name in extra:
            raise ValueError(f"extra.{name}: set by unstable; leave it out")


def chat_parameters(
    max_tokens: int, temperature: float, extra: Mapping[str, Any], refused: Collection[str] = ()
) -> dict[str, Any]:
    """Return a chat request's parameters except model and messages; `extra` takes precedence.

    Parameters in `refused`, which the model rejected, are left out unless `extra` sets them;
    without `max_tokens` the limit is sent as `max_completion_tokens`.
    """
    limit = "max_tokens"
    if "max_completion_tokens" in extra or limit in refused:
        limit = "max_completion_tokens"
    given = {limit: max_tokens, "temperature": temperature, **extra}
    named = {name: value for name, value in given.items() if value is not None}
    return {name: value for name, value in named.items() if name in extra or name not in refused}


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a server at that host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(name: str, field: str) -> str:
    """Return the token in the environment variable `name`, which logs and files then hide.

    Raises `ConfigError` that begins with `field` if the token is missing or cannot be sent.
    """
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise ConfigError(
            f"{field}: not the name of an environment variable; export the token in one and give "
            "its name"
        )
    keep_secret(name)
    token = os.environ.get(name, "")
    if not _TOKEN.fullmatch(token):
        found = "its value is not one word of printable ASCII" if token else "not set"
        raise ConfigError(f"{field} = {shown(name)}: {found}; export the token in this variable")
    return token
