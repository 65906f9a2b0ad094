"""The user's cache: what is made once on a machine and used by many runs."""

import os
from pathlib import Path

from unstable.config import ConfigError


def cache_folder() -> Path:
    """`unstable` in XDG_CACHE_HOME, or else in `~/.cache`; made if it is not there.

    Raises `ConfigError` where it cannot be.
    """
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "unstable"
    remedy = "set XDG_CACHE_HOME to a folder that you may write to"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder}: cannot be made ({error.strerror}); {remedy}") from None
    if not os.access(folder, os.W_OK):
        raise ConfigError(f"{folder}: may not be written to; {remedy}")
    return folder
