"""The web application: routes of OpenAI's API and its dialects, from requests to responses.

A `ServedSeat` answers requests. A `Served` object finds the seat by the path before `/v1` and the
request's token, and refuses clients without permission.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from unstable.engines.base import EngineDiedError
from unstable.serving.dialects import Dialect, dialects, translated
from unstable.serving.growing import ended
from unstable.serving.replies import ServedSeat, Writer, check_model
from unstable.serving.requests import (
    MOST_BYTES,
    ApiError,
    ChatRequest,
    TextRequest,
    as_error,
    json_object,
    read_request,
)
from unstable.serving.stream import event, pieces

_BODY_S = 60  # timeout for receiving a body
_READ_AWAY = 16 * MOST_BYTES  # bytes read of an oversized body, so that the client gets the error
T = TypeVar("T")


class Served(Protocol):
    """Everything that one port serves."""

    def seat(self, path: Mapping[str, str], token: str | None) -> ServedSeat:
        """Return the seat of a path's parameters; raises `ApiError`."""

    def routes(self) -> list[BaseRoute]:
        """Return routes in addition to those of seats."""


def application(served: Served, prefix: str = "") -> Starlette:
    """Return the application, with seats at `prefix` followed by the API's own paths."""

    created = int(time.time())

    def told(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": created, "owned_by": "unstable"}

    async def models(http: HttpRequest) -> Response:
        seat = served.seat(http.path_params, token_of(http))
        return JSONResponse({"object": "list", "data": [*map(told, seat.models())]})

    async def model(http: HttpRequest) -> Response:
        seat, name = served.seat(http.path_params, token_of(http)), http.path_params["name"]
        check_model(seat, name)
        return JSONResponse(told(name))

    async def chat(http: HttpRequest) -> Response:
        return await _answered(served, http, ChatRequest)

    async def text(http: HttpRequest) -> Response:
        return await _answered(served, http, TextRequest)

    async def health(http: HttpRequest) -> Response:
        return JSONResponse({"status": "ok"})

    return Starlette(
        routes=[
            Route(f"{prefix}/v1/models", models),
            Route(f"{prefix}/v1/models/{{name:path}}", model),
            Route(f"{prefix}/v1/chat/completions", chat, methods=["POST"]),
            Route(f"{prefix}/v1/completions", text, methods=["POST"]),
            *(route for each in dialects() for route in _routes(served, prefix, each)),
            Route("/health", health),
            *served.routes(),
        ],
        exception_handlers=dict.fromkeys(
            (ApiError, HTTPException, EngineDiedError, Exception), _refused
        ),
    )


def _routes(served: Served, prefix: str, dialect: Dialect) -> list[Route]:
    """Return the routes of a dialect's requests."""

    async def asked(http: HttpRequest) -> Response:
        http.state.dialect = dialect
        return await _answered(served, http, ChatRequest, dialect)

    async def counted(http: HttpRequest) -> Response:
        http.state.dialect = dialect
        seat = served.seat(http.path_params, token_of(http))
        given = {**dialect.count_lacks, **json_object(await body_of(http))}
        count = asyncio.create_task(seat.count(translated(dialect, given)))
        return JSONResponse(dialect.counted(await unless_gone(http, count)))

    return [
        Route(f"{prefix}{dialect.path}", asked, methods=["POST"]),
        Route(f"{prefix}{dialect.count_path}", counted, methods=["POST"]),
    ]


def token_of(http: HTTPConnection) -> str | None:
    """Return a request's bearer token or, as in Anthropic's API, its key; None without one."""
    kind, _, token = http.headers.get("authorization", "").partition(" ")
    bearer = token.strip() if kind.lower() == "bearer" else ""
    return bearer or http.headers.get("x-api-key") or None


async def body_of(http: HttpRequest) -> bytes:
    """Return a request's body, whose header must declare JSON: browsers never send that unasked.

    Raises `ApiError` for another content type, a body that is too large, or one that takes too
    long.
    """
    kind = http.headers.get("content-type", "").partition(";")[0]
    if kind.strip().lower() != "application/json":
        raise ApiError(415, "Content-Type must be application/json")
    found, length = bytearray(), 0
    try:
        async with asyncio.timeout(_BODY_S):
            async for part in http.stream():
                length += len(part)
                if length > _READ_AWAY:
                    break
                if length <= MOST_BYTES:
                    found += part
    except TimeoutError:
        raise ApiError(408, f"request body timed out after {_BODY_S} s") from None
    except ClientDisconnect:
        raise ApiError(499, "the client disconnected") from None
    if length > MOST_BYTES:
        raise ApiError(413, f"the request body exceeds {MOST_BYTES} bytes")
    return bytes(found)


async def _answered(
    served: Served,
    http: HttpRequest,
    kind: type[ChatRequest] | type[TextRequest],
    dialect: Dialect | None = None,
) -> Response:
    """Answer a request, one of a `dialect` by a chat completion."""
    seat = served.seat(http.path_params, token_of(http))  # check before reading the body
    given = json_object(await body_of(http))
    request = read_request(kind, given) if dialect is None else translated(dialect, given)
    if not request.stream:
        asked = asyncio.create_task(seat.answer(request, None))
        whole = Writer(request, seat.strings).whole(await unless_gone(http, asked))
        return JSONResponse(whole if dialect is None else dialect.whole(given, whole))
    told = pieces(seat, request)
    # An error before the first piece becomes a plain response.
    first = await unless_gone(http, asyncio.ensure_future(anext(told)))

    async def all_pieces() -> AsyncIterator[dict[str, Any]]:
        yield first
        async for piece in told:
            yield piece

    async def events() -> AsyncIterator[bytes]:
        async with contextlib.aclosing(told):
            if dialect is None:
                async for piece in all_pieces():
                    yield event(piece)
                if "error" not in piece:
                    yield event("[DONE]")
                return
            async for each in dialect.events(given, all_pieces()):
                yield event(each, each["type"])

    return StreamingResponse(events(), media_type="text/event-stream")


async def unless_gone(http: HttpRequest, asked: "asyncio.Future[T]") -> T:
    """Return the task's result; cancels it and raises `ApiError` if the client disconnects."""

    async def gone() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass

    leaving = asyncio.create_task(gone())
    both: list[asyncio.Future[Any]] = [asked, leaving]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if leaving.done():
            raise ApiError(499, "the client disconnected")
        return asked.result()
    finally:
        await ended(*both)


async def _refused(http: HttpRequest, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        error = ApiError(error.status_code, f"{http.method} {http.url.path}: {error.detail}")
    error, dialect = as_error(error), getattr(http.state, "dialect", None)
    body = error.body() if dialect is None else dialect.error(error)
    return JSONResponse(body, status_code=error.status, headers=error.headers)
