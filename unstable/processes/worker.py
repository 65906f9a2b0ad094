"""Worker: a function in another process, called with a time limit; also that process's module.

python -m unstable.processes.worker DESCRIPTOR
"""

import asyncio
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, Literal

from unstable.processes.frames import frame, read_frame, receive_frame, start_module

START_S = 120.0
"""Seconds that a worker has to import and make its function."""
Beat = Callable[[], None]
"""Restarts the time limit of the current request."""
Reply = tuple[Literal["beat", "value", "error"], Any]


class WorkerError(RuntimeError):
    """End of a worker's process by itself, or by a kill after its time limit."""


class Worker:
    """A process that replies to one request at a time; the first request starts it.

    The process calls `make` once, which returns the function from a request to its reply. All of
    these are pickled. `name` begins the messages of errors; `limit_s` is the maximum number of
    seconds until a reply or a beat, None for no limit.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[], Callable[[Any, Beat], Any]],
        limit_s: float | None = None,
    ) -> None:
        self._name, self._make, self._limit_s = name, make, limit_s
        self._turn = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: object) -> Any:
        """Return the reply to a request, or raise the error that the function raised.

        Raises `WorkerError` if the process ends or exceeds the time limit. The next request then
        starts a new process, and also does so after a cancellation of this call.
        """
        async with self._turn:
            kind: str | None = None
            late = f"did not start within {START_S:g} s"
            try:
                if self._streams is None:
                    await self._start()
                self._send(request)
                late = f"timed out after {self._limit_s or 0:g} s"
                kind, content = await self._reply()
            except TimeoutError:
                raise WorkerError(f"{self._name} {late}") from None
            except (asyncio.IncompleteReadError, ConnectionError):
                assert self._process is not None
                self._process.kill()
                how = described_exit(self._process.wait())
                raise WorkerError(f"{self._name} {how}") from None
            finally:
                if kind is None:
                    self.close()
        if kind == "error":
            raise content
        return content

    async def _start(self) -> None:
        connection, self._process = start_module(__name__)
        self._streams = await asyncio.open_unix_connection(sock=connection)
        self._send(self._make)
        async with asyncio.timeout(START_S):
            await receive_frame(self._streams[0])

    async def _reply(self) -> Reply:
        assert self._streams is not None
        while True:
            async with asyncio.timeout(self._limit_s):
                reply: Reply = await receive_frame(self._streams[0])
            if reply[0] != "beat":
                return reply

    def _send(self, value: object) -> None:
        assert self._streams is not None
        self._streams[1].write(frame(value))

    def close(self) -> None:
        """Kill the process if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._streams is not None:
            self._streams[1].close()
        self._process = self._streams = None


def described_exit(code: int) -> str:
    """Return a description of a process's end, from its exit code in the form of `subprocess`."""
    if code >= 0:
        return f"exited with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    memory = " (probably out of memory)" if code == -signal.SIGKILL else ""
    return f"was killed by {name}{memory}"


def main(descriptor: int) -> None:
    """Reply to requests until the requesting process is gone, which ends this one in any case."""
    connection = socket.socket(fileno=descriptor)
    threading.Thread(target=_end_with_asker, args=(descriptor,), daemon=True).start()
    stream = connection.makefile("rwb")

    def send(content: bytes) -> None:
        stream.write(content)
        stream.flush()

    function = read_frame(stream.read)()
    beat = frame(("beat", None))
    send(beat)
    while True:
        request = read_frame(stream.read)
        try:
            content = frame(("value", function(request, lambda: send(beat))))
        except (Exception, SystemExit) as error:  # `ask` raises it
            content = frame(("error", _portable(error)))
        send(content)


def _portable(error: BaseException) -> BaseException:
    """Return the error with its traceback as a note; a `RuntimeError` if it cannot be pickled."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except (pickle.PicklingError, TypeError, AttributeError, ValueError):
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(f"in the worker's process:\n{text}")
    return error


def _end_with_asker(descriptor: int) -> None:
    """End this process once the requesting process is gone, even during a long request."""
    look = select.poll()
    look.register(descriptor, select.POLLRDHUP)
    look.poll()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]))
