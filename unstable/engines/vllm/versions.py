"""Parts of both ways to serve versions with vLLM, as LoRAs and as whole models."""

import contextlib
import shutil
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock


class Weights(NamedTuple):
    """The weights of a request, in vLLM's terms."""

    lora: Any = None  # a `LoRARequest`
    salt: str | None = None  # key of the prompt in the prefix cache


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
