"""What the config may say of an endpoint: a config is written to files and shown, so no key."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit


def check_keyless(variable: str | None, url: str, field: str = "base_url") -> None:
    """Raise `ValueError` where a key may be in an endpoint's address, or as `api_key_env`."""
    if variable is not None and not re.fullmatch(r"[A-Za-z_]\w*", variable):
        raise ValueError(
            "api_key_env is no name of an environment variable; export the key in one, and "
            "give its name"
        )
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query:
        raise ValueError(
            f"{field} holds a name, a password or a query, which the run's files would show; "
            "export the key in the variable of api_key_env, and leave it out"
        )


def check_extra(extra: Mapping[str, Any]) -> None:
    """Raise `ValueError` for further parameters of a chat that are not free to choose."""
    for name in ("model", "messages", "stream", "n"):
        if name in extra:
            raise ValueError(f"extra.{name}: is not free to choose here; leave it out")
