"""Fork server: forks processes from one that has their imports; also the module of that process.

python -m unstable.processes.fork_server DESCRIPTOR FUNCTIONS
"""

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

from unstable.processes.frames import start_module


class ForkServer:
    """A server process that forks one process per call of `fork`; the first call starts the server.

    The server calls `prepare` once; each fork calls `serve` with its end of a socket. Both
    functions are pickled. All forks end with this process.
    """

    def __init__(
        self, prepare: Callable[[], object], serve: Callable[[socket.socket], object]
    ) -> None:
        self._functions = pickle.dumps((prepare, serve)).hex()
        self._process: subprocess.Popen[bytes] | None = None

    def fork(self) -> socket.socket:
        """Start a process and return the socket that is connected to it."""
        if self._process is None or self._process.poll() is not None:
            self._control, self._process = start_module(__name__, self._functions)
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"+"], [theirs.fileno()])
        return ours

    def close(self) -> None:
        """End all forks."""
        if self._process is not None:
            self._control.close()
            self._process.wait()
            self._process = None


def main(descriptor: int, functions: str) -> None:
    """Fork a process for each request, until the parent is gone."""
    control = socket.socket(fileno=descriptor)
    prepare, serve = pickle.loads(bytes.fromhex(functions))
    prepare()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forks are reaped automatically
    while True:
        asked, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not asked:
            os.killpg(0, signal.SIGKILL)  # includes this process
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                serve(socket.socket(fileno=descriptors[0]))
            finally:
                os._exit(0)  # even if `serve` has left threads running
        os.close(descriptors[0])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
