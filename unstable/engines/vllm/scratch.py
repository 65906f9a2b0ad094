"""A temporary folder of one process, which no death leaves behind for long.

The folder is locked while its owner lives, which the kernel sees to. Who makes another one first
deletes those that nobody holds any more.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path


class ScratchFolder:
    """A new, empty folder `path` among the machine's temporary files, until `close`."""

    def __init__(self, prefix: str) -> None:
        parent = Path(tempfile.gettempdir())
        for left in parent.glob(f"{prefix}*"):
            # Another's folder, or one that another process is just deleting.
            with contextlib.suppress(PermissionError, FileNotFoundError, BlockingIOError):
                os.close(_locked(left))
                shutil.rmtree(left)
        # Only a locked folder gets a name by which others look for it.
        made = Path(tempfile.mkdtemp(prefix="new-"))
        self._lock = _locked(made)
        self.path = made.rename(parent / made.name.replace("new-", prefix, 1))

    def close(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self.path)
        os.close(self._lock)


def _locked(folder: Path) -> int:
    """A descriptor that holds the folder; `BlockingIOError` where another process does."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    return descriptor
