"""A temporary folder of one process, which no death leaves behind for long.

The folder is locked while its owner lives, which the kernel sees to. Who makes another one first
deletes those that nobody holds any more.
"""

import contextlib
import shutil
import tempfile
from pathlib import Path

from filelock import FileLock


class ScratchFolder:
    """A new folder `path` among the machine's temporary files, until `close`."""

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
