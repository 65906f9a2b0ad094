"""What vLLM's two ways to serve versions have in common: by LoRAs, and by whole models."""

import contextlib
import shutil
import tempfile
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from filelock import FileLock

from unstable.types import Adapter


class Weights(NamedTuple):
    """The weights of a request, in vLLM's own words."""

    lora: Any = None  # a `LoRARequest`
    salt: str | None = None  # what the prefix cache files the prompt under


class Versions(Protocol):
    """The versions that an engine serves. One event loop uses it."""

    @property
    def requests(self) -> int:
        """Requests under a version that is not the base."""

    @property
    def hits(self) -> int:
        """Requests under such a version whose weights were there."""

    async def start(self) -> None:
        """Make the base model right, before the first request."""

    async def load(self, weights: Adapter) -> None:
        """Serve a version; `ValueError` if its name is taken or it does not fit the base."""

    async def unload(self, name: str) -> None:
        """Forget a version. No request in flight may use it."""

    def asked(self, name: str | None) -> AbstractAsyncContextManager[Weights]:
        """A request under that version, None for the base, is in flight.

        Raises `ValueError` if it is not served.
        """


class ScratchFolder:
    """A new folder `path` among the machine's temporary files, which no death leaves for long.

    It is there until `close`, and locked while its owner lives, which the kernel sees to. Who makes
    another one first deletes those that nobody holds any more.
    """

    def __init__(self, prefix: str) -> None:
        parent = Path(tempfile.gettempdir())
        for left in parent.glob(f"{prefix}*"):
            # One that is held, another user's, or one that another process is just deleting.
            with contextlib.suppress(OSError), FileLock(left / ".lock", timeout=0):
                shutil.rmtree(left)
        # Only a locked folder gets a name by which others look for it.
        made = Path(tempfile.mkdtemp(prefix="new-"))
        self._lock = FileLock(made / ".lock", timeout=0)
        self._lock.acquire()
        self.path = made.rename(parent / made.name.replace("new-", prefix, 1))

    def close(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.path)
        self._lock.release()
