"""Environments of an OpenEnv server: `games.env: openenv:URL`, or the Space `openenv:OWNER/NAME`.

https://github.com/huggingface/OpenEnv, the websocket protocol of version 0.10. A game has one seat
and pays the sum of its rewards. A seat sees the observation's chat (`messages`), or else its fields
in lines. It answers the action's only required field, or a JSON object. `games.args`: `action`, the
field that answers fill; `fixed`, values of other fields; `reset`, parameters of `reset`;
`timeout`, seconds for an answer of the server. The variable OPENENV_TOKEN may hold a bearer token.
"""

import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Mapping
from http.client import HTTPException
from typing import Any, Self
from urllib.request import ProxyHandler, Request, build_opener

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection, connect

from unstable.config import ConfigError, one_line, shown
from unstable.config.endpoint import read_token
from unstable.games.environment import Environment, EnvStep, ServiceDownError
from unstable.games.info import GameInfo
from unstable.types import Observation

_TOKEN = "OPENENV_TOKEN"
_URL = re.compile(r"https?://[^\s/?#@]+(/[^\s?#]*)?")
_SPACE = re.compile(r"(https://huggingface\.co/(spaces/)?)?(?P<name>[\w-]+/[\w.-]+)/?", re.ASCII)
_NO_OWNERS = {"localhost", "spaces", "datasets", "models"}
_LISTS = ("legal_moves", "legal_actions")
"""Fields of observations with the legal actions."""
_HIDDEN = {*_LISTS, "metadata"}
_SCHEMA_S, _OPEN_S, _ANSWER_S = 10.0, 10.0, 60.0
_MOST_BYTES = 2**24
_SEEDS = 2**31  # number of seeds; servers may use 32 bits
_REFUSED, _FULL = "VALIDATION_ERROR", "CAPACITY_REACHED"  # codes of errors
_FREE_S, _PAUSE_S = 3.0, 0.1  # timeout and interval of attempts at a server without a free session


class _RefusedError(Exception):
    """A move that the server, or the type of its action, does not accept."""


class _NoSessionError(RuntimeError):
    """A server without a free session."""


class OpenEnvEnvironment(Environment):
    """One play at a server. `environment_class` makes the class of each server."""

    address: str
    schema: Mapping[str, Any]
    """Properties of the action, and which of them are required."""
    _socket: ClientConnection | None = None

    def __init__(
        self,
        action: str | None = None,
        fixed: Mapping[str, Any] | None = None,
        reset: Mapping[str, Any] | None = None,
        timeout: float = _ANSWER_S,
    ) -> None:
        self._field = self._field_of(action, fixed or {})
        self._fixed, self._asked = dict(fixed or {}), dict(reset or {})
        self._timeout = timeout
        self._closing = contextlib.ExitStack()
        self._seen: dict[str, Any] = {}
        self._total = 0.0

    def _field_of(self, asked: str | None, fixed: Mapping[str, Any]) -> str | None:
        """Return the field that answers fill; None if they are JSON objects."""
        known = self.schema.get("properties", {})
        for place, names in (("fixed", [*fixed]), ("action", [asked] if asked else [])):
            for name in names:
                if name not in known:
                    raise ConfigError(
                        f"games.args.{place} = {shown(name)}: no field of the action; use one of "
                        f"{', '.join(known)}"
                    )
        if asked is not None:
            return asked
        filled = {*fixed, "metadata"}
        open_fields = [name for name in self.schema.get("required", known) if name not in filled]
        return open_fields[0] if len(open_fields) == 1 else None

    def reset(self, seats: int, seed: int) -> None:
        """Start a game in a session of its own."""
        assert seats == 1, "an OpenEnv environment has 1 seat"
        deadline = time.monotonic() + _FREE_S
        while True:
            self._open()
            try:
                answer = self._ask("reset", {"seed": seed % _SEEDS, **self._asked})
                break
            except _NoSessionError:  # a server ends closed sessions after a while
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)
        self._total = 0.0
        assert not self._take(answer), "the server's game is over at its start"

    def _open(self) -> None:
        self._close()
        try:
            opening = connect(
                f"ws{self.address.removeprefix('http')}/ws",
                additional_headers=_headers(),
                open_timeout=_OPEN_S,
                max_size=_MOST_BYTES,
                proxy=True if self.address.startswith("https:") else None,
            )
            self._socket = self._closing.enter_context(opening)
        except (OSError, WebSocketException, ImportError) as error:  # python-socks is missing
            raise RuntimeError(
                f"{self.address}: no session ({error}); start the server, and if it needs a token, "
                f"export it as {_TOKEN}"
            ) from error

    @property
    def mover(self) -> int:
        return 0

    def observe(self) -> Observation:
        """Return the server's chat, or its other fields as the board."""
        told = self._seen.get("messages")
        chat = tuple(told) if isinstance(told, list) and all(map(_is_message, told)) else ()
        board = "" if chat else _text(self._seen)
        return Observation(seat=0, rules="", events=[], board=board, notice="", chat=chat)

    def legal_moves(self) -> list[str]:
        """Return the legal actions of the server's observation; `ValueError` without any."""
        for name in _LISTS:
            if listed := self._seen.get(name):
                return list(dict.fromkeys(map(_written, listed)))
        raise ValueError(f"{self.info.name}: the server lists no legal actions")

    def step(self, action: str) -> EnvStep:
        """Send an action; one that the server or its schema does not accept is refused."""
        try:
            answer = self._ask("step", self._data(action))
        except _RefusedError as error:
            return EnvStep(over=False, refused=True, reason=one_line(str(error)))
        over = self._take(answer)
        if over:
            self._close()
        return EnvStep(over=over, refused=False, reason="the server ended the game" * over)

    def payoffs(self) -> list[float]:
        """Return the sum of the rewards."""
        return [self._total]

    def copied(self) -> Self:
        """Raise `ValueError`: a server's game cannot be copied."""
        raise ValueError(f"{self.info.name}: the server's game cannot be copied")

    def __del__(self) -> None:
        if not sys.is_finalizing():  # the socket's thread is gone, and closing would wait for it
            self._close()

    def _data(self, action: str) -> dict[str, Any]:
        """Return the message's data for an answer; raises `_RefusedError` for another type."""
        properties = self.schema.get("properties", {})
        if self._field and properties.get(self._field, {}).get("type", "string") == "string":
            return {**self._fixed, self._field: action}
        try:
            value = json.loads(action)
        except (ValueError, RecursionError):
            raise _RefusedError(f"not JSON: {shown(action)}") from None
        if self._field:
            return {**self._fixed, self._field: value}
        if not isinstance(value, dict):
            raise _RefusedError(f"not a JSON object: {shown(action)}")
        return {**value, **self._fixed}

    def _ask(self, kind: str, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the data of the server's answer; `_RefusedError` if it refuses the message.

        Raises `RuntimeError` for any other error, and `ServiceDownError` without an answer.
        """
        socket = self._socket
        if socket is None:
            raise RuntimeError(f"{self.info.name}: no game in play")
        try:
            with contextlib.suppress(ConnectionClosed):  # the server may have sent the reason
                socket.send(json.dumps({"type": kind, "data": data}))
            answer = json.loads(socket.recv(timeout=self._timeout))
        except (WebSocketException, ValueError, OSError) as error:
            raise ServiceDownError(f"{self.address}: no answer ({error})") from error
        told = answer.get("data", {})
        if answer.get("type") == "error":
            code, why = told.get("code"), f"{self.address}: {told.get('message', 'error')}"
            if code == _FULL:
                raise _NoSessionError(f"{why}; let the server open a session per game in flight")
            raise (_RefusedError if code == _REFUSED else RuntimeError)(why)
        return dict(told)

    def _take(self, answer: Mapping[str, Any]) -> bool:
        """Keep an answer's observation and reward; return whether the game is over."""
        self._seen = dict(answer.get("observation") or {})
        self._total += float(answer.get("reward") or 0.0)
        return bool(answer.get("done"))

    def _close(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            with contextlib.suppress(WebSocketException, OSError):
                socket.send(json.dumps({"type": "close"}))
            self._closing.close()


def _is_message(each: Any) -> bool:
    return isinstance(each, dict) and isinstance(each.get("content"), str) and "role" in each


def _text(observation: Mapping[str, Any]) -> str:
    """Return an observation's fields in lines, a single field without its name."""
    seen = {k: v for k, v in observation.items() if k not in _HIDDEN and v not in (None, [], {})}
    if len(seen) == 1:
        return _written(*seen.values())
    return "\n".join(f"{name}: {_written(value)}" for name, value in seen.items())


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _headers() -> dict[str, str]:
    """Return the headers of a request, with the token if one is set."""
    if _TOKEN not in os.environ:
        return {}
    return {"Authorization": f"Bearer {read_token(_TOKEN, 'games.env')}"}


def server_url(name: str) -> str | None:
    """Return the URL of a server from its URL or the name of its Hugging Face Space, else None.

    >>> server_url("openenv/Echo_env")
    'https://openenv-echo-env.hf.space'
    """
    if (space := _SPACE.fullmatch(name)) and space["name"].split("/")[0] not in _NO_OWNERS:
        return f"https://{re.sub('[^a-z0-9]', '-', space['name'].lower())}.hf.space"
    return name.rstrip("/") if _URL.fullmatch(name) else None


def environment_class(name: str) -> type[OpenEnvEnvironment]:
    """Return the class of a server's games; raises `ConfigError` if the server does not answer."""
    place = f"target = {shown(f'openenv:{name}')}"
    if (base := server_url(name)) is None:
        raise ConfigError(
            f"{place}: neither a URL nor a Space's OWNER/NAME; start the environment's server and "
            "give its URL, such as openenv:http://127.0.0.1:8000"
        )
    opener = build_opener(ProxyHandler(None if base.startswith("https:") else {}))  # as `_open`
    try:
        request = Request(f"{base}/schema", headers=_headers())
        with opener.open(request, timeout=_SCHEMA_S) as answer:
            schemas = json.load(answer)
        action, observation = schemas["action"], schemas["observation"].get("properties", {})
    except (OSError, HTTPException, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{place}: no OpenEnv server at {base} ({one_line(str(error))}); start it, set its "
            f"URL, or export its token as {_TOKEN}"
        ) from None
    own = {
        "address": base,
        "schema": action,
        "lists_moves": any(each in observation for each in _LISTS),
        "info": GameInfo(name=f"openenv:{base.partition('://')[2]}"),
        "__doc__": f"One play at {base}.",
    }
    return type("OpenEnv", (OpenEnvEnvironment,), own)
