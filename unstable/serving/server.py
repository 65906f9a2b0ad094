"""A port that is listened at, on the event loop of whoever serves."""

import asyncio
import contextlib
import socket
from typing import Any, Self

import uvicorn

from unstable.config import ConfigError

_BACKLOG = 1024
_IDLE_S = 30  # that a connection is kept open without a request
_LAST_S = 5  # that requests in flight have when the server ends


class _Server(uvicorn.Server):
    """Leaves signals to whoever serves."""

    def capture_signals(self) -> Any:
        """Captures none."""
        return contextlib.nullcontext()


class Server:
    """Serves an application at a host and port until `close`; port 0 is any that is free."""

    def __init__(
        self, application: Any, host: str, port: int, field: str = "port", *, shared: bool = False
    ) -> None:
        """Raises `ConfigError`, which names `field`, where the port cannot be had.

        A `shared` port is that of several processes of one user: each connection comes to any of
        them. `application` may be set until `start`.
        """
        self.application = application
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            self._socket.bind((host, port))
        except (OSError, OverflowError) as error:
            self._socket.close()
            raise ConfigError(
                f"{field} = {port}: cannot be listened at on {host} ({error}); choose another"
            ) from None
        self._socket.listen(_BACKLOG)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where it is, without a slash at the end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def start(self) -> Self:
        """Begin to serve; requests that came before are answered now."""
        self._server = _Server(
            uvicorn.Config(
                self.application,
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_keep_alive=_IDLE_S,
                timeout_graceful_shutdown=_LAST_S,
                server_header=False,
                ws="none",
            )
        )
        serving = self._server.serve(sockets=[self._socket])
        self._task = asyncio.create_task(serving, name=f"server at {self.url}")
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise RuntimeError(f"the server at {self.url} ended as it began")
            await asyncio.sleep(0.01)
        return self

    async def close(self) -> None:
        """Serve no more; requests in flight have some seconds."""
        if self._task is not None and self._server is not None:
            self._server.should_exit = True
            await asyncio.wait([self._task], timeout=2 * _LAST_S)
            self._task.cancel()
        self._socket.close()
