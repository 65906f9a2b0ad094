"""What vLLM's workers load besides their own code: they end when the engine's owner does.

vLLM's processes outlive an owner that is killed, and keep its memory. Importing this file, which
vLLM does in every worker as it starts, watches the owner from then on; a worker's end is its
engine core's too.
"""

import os
import select
import signal
import threading

OWNER_VARIABLE = "UNSTABLE_ENGINE_OWNER"
"""Environment variable with the process id of the engine's owner."""


class EndsWithOwner:
    """The class that vLLM asks for (`worker_extension_cls`); loading it is all that counts."""


def end_with(owner: int) -> None:
    """Wait until the process `owner` is gone, and kill this one."""
    try:
        watched = select.poll()
        watched.register(os.pidfd_open(owner), select.POLLIN)
        watched.poll()
    except ProcessLookupError:  # it is gone already
        pass
    os.kill(os.getpid(), signal.SIGKILL)


if OWNER_VARIABLE in os.environ:
    _owner = int(os.environ[OWNER_VARIABLE])
    threading.Thread(target=end_with, args=(_owner,), name="owner watch", daemon=True).start()
