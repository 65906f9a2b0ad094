"""A web server on a port, within the caller's event loop."""

import asyncio
import contextlib
import logging
import math
import resource
import socket
import time
from typing import Any, Self

import uvicorn
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.websockets import WebSocketClose
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from unstable.config import ConfigError
from unstable.config.endpoint import is_loopback

log = logging.getLogger(__name__)

_BACKLOG = 1024
_IDLE_S = 30  # timeout of a connection without a request
_LAST_S = 5  # timeout of requests in flight when the server ends
_HEADER_S = 20.0  # timeout for receiving a request's header
_MOST_CONNECTIONS = 4096
_SAY_EVERY_S = 60.0
_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: 0\r\n\r\n"
)
_LOCAL = {"localhost", "127.0.0.1", "::1"}


def most_connections() -> int:
    """Return the limit of connections: half of this process's file limit, at most 4,096."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST_CONNECTIONS if soft < 0 else min(_MOST_CONNECTIONS, max(8, soft // 2))


def _allow_files() -> None:
    """Raise this process's soft file limit for those connections, as far as allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * _MOST_CONNECTIONS if hard < 0 else min(2 * _MOST_CONNECTIONS, hard)
    if 0 <= soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class _Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """A protocol that closes connections without a timely request, and limits their number."""

    _timer: asyncio.TimerHandle | None = None
    _said_s = -math.inf  # class-wide: time of the last warning of too many connections

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > most_connections():
            if time.monotonic() - _Protocol._said_s > _SAY_EVERY_S:
                log.warning("more than %d connections; rejecting new ones", most_connections())
                _Protocol._said_s = time.monotonic()
            transport.write(_FULL)
            transport.close()
        else:
            self._look()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop()

    def _look(self) -> None:
        """Start the timeout for a request's header, unless a request is in progress.

        A connection that became a websocket has another protocol, with its own timeouts.
        """
        cycle = getattr(self, "cycle", None)
        is_websocket = self.transport.get_protocol() is not self
        if is_websocket or (cycle is not None and not cycle.response_complete):
            self._stop()
        elif self._timer is None:
            self._timer = self.loop.call_later(_HEADER_S, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None


class _AskedHere:
    """An application that answers only requests to this machine's own names.

    It prevents DNS rebinding: a web page whose name resolves to this machine could otherwise read
    answers. Browsers let any page open a websocket, and name its origin; programs do not.
    """

    def __init__(self, application: Any, host: str) -> None:
        self._application, self._names = application, {*_LOCAL, host}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] in ("http", "websocket"):
            host = Headers(scope=scope).get("host", "")
            name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
            if name.strip("[]").lower() not in self._names:
                text = "Host header not allowed; use localhost or 127.0.0.1"
                await self._refuse(text, scope, receive, send)
                return
            if scope["type"] == "websocket" and "origin" in Headers(scope=scope):
                await self._refuse("no websockets for web pages", scope, receive, send)
                return
        await self._application(scope, receive, send)

    @staticmethod
    async def _refuse(text: str, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await WebSocketClose(reason=text)(scope, receive, send)
        else:
            await PlainTextResponse(text, status_code=421)(scope, receive, send)


class _QuietServer(uvicorn.Server):
    """A server that leaves signals to the caller."""

    def capture_signals(self) -> Any:
        """Capture no signals."""
        return contextlib.nullcontext()


def bound_socket(host: str, port: int, field: str, *, shared: bool = False) -> socket.socket:
    """Return a socket bound to a port; raises `ConfigError`, which names `field`, if it is taken.

    Several processes of one user may bind a `shared` port.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        found.bind((host, port))
    except (OSError, OverflowError) as error:
        found.close()
        raise ConfigError(
            f"{field} = {port}: cannot listen on {host} ({error}); choose another port"
        ) from None
    return found


class Server:
    """A server of an application at a host and port until `close`; port 0 selects a free one."""

    def __init__(
        self,
        application: Any,
        host: str,
        port: int,
        field: str = "port",
        *,
        shared: bool = False,
        websockets: bool = False,
    ) -> None:
        """Bind the port; raises `ConfigError`, which names `field`, if it is not available.

        Several processes of one user may bind a `shared` port: each connection reaches any of them.
        `application` may be replaced until `start`; `websockets` need the package of that name.
        """
        self.application, self._websockets = application, websockets
        self._socket = bound_socket(host, port, field, shared=shared)
        self._socket.listen(_BACKLOG)
        self.host, self.port = host, int(self._socket.getsockname()[1])
        self._server: _QuietServer | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """The server's address, without a slash at the end."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    async def start(self) -> Self:
        """Start serving, with requests that are already waiting."""
        _allow_files()
        asked = self.application
        self._server = _QuietServer(
            uvicorn.Config(
                _AskedHere(asked, self.host) if is_loopback(self.host) else asked,
                http=_Protocol,
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_keep_alive=_IDLE_S,
                timeout_graceful_shutdown=_LAST_S,
                server_header=False,
                ws="websockets-sansio" if self._websockets else "none",
            )
        )
        serving = self._server.serve(sockets=[self._socket])
        self._task = asyncio.create_task(serving, name=f"server at {self.url}")
        while not self._server.started:
            if self._task.done():
                self._task.result()
                raise RuntimeError(f"the server at {self.url} stopped during startup")
            await asyncio.sleep(0.01)
        return self

    async def close(self) -> None:
        """Stop serving; requests in flight have some seconds to finish."""
        if self._task is not None and self._server is not None:
            self._server.should_exit = True
            await asyncio.wait([self._task], timeout=2 * _LAST_S)
            self._task.cancel()
        self._socket.close()
