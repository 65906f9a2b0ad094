"""The web application: where a request of OpenAI's API comes in, and what goes back.

A `Seat` answers requests. Which seat is asked, and whether whoever asks may, is for `Served` to
say: it finds a seat by the path before `/v1` and the token that came along.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from unstable.serving.replies import Seat, Writer, check_model
from unstable.serving.requests import (
    MOST_BYTES,
    ApiError,
    ChatRequest,
    TextRequest,
    as_error,
    read_request,
)
from unstable.serving.stream import pieces

T = TypeVar("T")


class Served(Protocol):
    """All that is served at one port."""

    def seat(self, path: Mapping[str, str], token: str | None) -> Seat:
        """The seat of a path's parameters; raises `ApiError`."""

    def routes(self) -> list[BaseRoute]:
        """Further routes besides those of seats."""


def application(served: Served, prefix: str = "") -> Starlette:
    """The application, with seats at `prefix` and the API's own paths after it."""

    async def models(http: HttpRequest) -> Response:
        seat = served.seat(http.path_params, token_of(http))
        names = [{"id": name, "object": "model", "owned_by": "unstable"} for name in seat.models()]
        return JSONResponse({"object": "list", "data": names})

    async def model(http: HttpRequest) -> Response:
        seat, name = served.seat(http.path_params, token_of(http)), http.path_params["name"]
        check_model(seat, name)
        return JSONResponse({"id": name, "object": "model", "owned_by": "unstable"})

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
            Route("/health", health),
            *served.routes(),
        ],
        exception_handlers={ApiError: _refused, HTTPException: _refused, Exception: _failed},
    )


def token_of(http: HttpRequest) -> str | None:
    """The bearer token that came with a request."""
    kind, _, token = http.headers.get("authorization", "").partition(" ")
    return token.strip() or None if kind.lower() == "bearer" else None


async def body_of(http: HttpRequest) -> bytes:
    """A request's body; raises `ApiError` for one that is too large."""
    found = bytearray()
    try:
        async for part in http.stream():
            found += part
            if len(found) > MOST_BYTES:
                raise ApiError(413, f"the body is larger than {MOST_BYTES} bytes")
    except ClientDisconnect:
        raise ApiError(400, "the client went away") from None
    return bytes(found)


async def _answered(
    served: Served, http: HttpRequest, kind: type[ChatRequest] | type[TextRequest]
) -> Response:
    seat = served.seat(http.path_params, token_of(http))  # before a body is read
    request = read_request(kind, await body_of(http))
    if request.stream:
        told = pieces(seat, request)
        first = await anext(told)  # what is wrong before it is an answer of its own

        async def all_pieces() -> AsyncIterator[bytes]:
            async with contextlib.aclosing(told):
                yield first
                async for piece in told:
                    yield piece

        return StreamingResponse(all_pieces(), media_type="text/event-stream")
    asked = asyncio.create_task(seat.answer(request, None))
    reply = await unless_gone(http, asked)
    return JSONResponse(Writer(request, seat.strings).whole(reply))


async def unless_gone(http: HttpRequest, asked: asyncio.Task[T]) -> T:
    """The answer, which is given up where who asked has gone away."""

    async def gone() -> None:
        while (await http.receive())["type"] != "http.disconnect":
            pass

    left = asyncio.create_task(gone())
    both: list[asyncio.Task[Any]] = [asked, left]
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            raise ApiError(499, "the client went away")
        return asked.result()
    finally:
        for each in both:
            each.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await left


async def _refused(http: HttpRequest, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        error = ApiError(error.status_code, f"{http.method} {http.url.path}: {error.detail}")
    assert isinstance(error, ApiError)
    headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else None
    return JSONResponse(error.body(), status_code=error.status, headers=headers)


async def _failed(http: HttpRequest, error: Exception) -> Response:
    found = as_error(error)
    return JSONResponse(found.body(), status_code=found.status)
