"""The common interface of vLLM's two ways to serve versions: LoRAs and whole models."""

import contextlib
import shutil
import tempfile
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from filelock import FileLock

from unstable.types import Adapter


class Weights(NamedTuple):
    """The weights of a request, in vLLM's terms."""

    lora: Any = None  # a `LoRARequest`
    salt: str | None = None  # key of the prompt in the prefix cache


class Versions(Protocol):
    """The versions that an engine serves. One event loop uses it."""

    @property
    def requests(self) -> int:
        """Number of requests under a version other than the base."""

    @property
    def hits(self) -> int:
        """Number of requests under such a version whose weights were in memory."""

    async def start(self) -> None:
        """Prepare the base model, before the first request."""

    async def load(self, weights: Adapter) -> None:
        """Serve a version; raises `ValueError` if its name is taken or it does not fit the base."""

    async def unload(self, name: str) -> None:
        """Remove a version. No request in flight may use it."""

    def asked(self, name: str | None) -> AbstractAsyncContextManager[Weights]:
        """Count a request under that version, None for the base, as in flight during the block.

        Raises `ValueError` if it is not served.
        """


class ScratchFolder:
    """A new temporary folder `path`, which does not outlive a crash of its owner for long.

    It exists until `close`, and its owner holds a lock on it, which the kernel releases when the
    owner dies. A new `ScratchFolder` first deletes folders that no process has locked.
    """

    def __init__(self, prefix: str) -> None:
        parent = Path(tempfile.gettempdir())
        for left in parent.glob(f"{prefix}*"):
            # Skip folders that are locked, another user's, or being deleted.
            with contextlib.suppress(OSError), FileLock(left / ".lock", timeout=0):
                shutil.rmtree(left)
        # Rename after locking: other processes delete unlocked folders with the prefix.
        made = Path(tempfile.mkdtemp(prefix="new-"))
        self._lock = FileLock(made / ".lock", timeout=0)
        self._lock.acquire()
        self.path = made.rename(parent / made.name.replace("new-", prefix, 1))

    def close(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.path)
        self._lock.release()
