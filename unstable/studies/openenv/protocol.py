"""OpenEnv's server protocol: a websocket is a session, whose client plays one game after another.

https://github.com/huggingface/OpenEnv, as its version 0.10 speaks it: messages `reset`, `step`,
`state` and `close`, answered by `observation`, `state` or `error`.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, NamedTuple, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from unstable.config import one_line, shown
from unstable.serving.app import token_of
from unstable.serving.growing import ended
from unstable.serving.requests import MOST_BYTES, is_token

Code = Literal[
    "INVALID_JSON", "UNKNOWN_TYPE", "VALIDATION_ERROR", "EXECUTION_ERROR", "CAPACITY_REACHED"
]
T = TypeVar("T", bound=BaseModel)
_GONE = "websocket.disconnect"
_MOST_WAITING = 8  # messages of a client that are read ahead
_NO_TOKEN = "missing or wrong bearer token"


class SessionError(Exception):
    """An error that the client gets, with the protocol's code; the session goes on."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ResetRequest(_Strict):
    """Data of `reset`: the game to deal. Every field is optional."""

    seed: Annotated[int, Field(ge=0, lt=2**53)] | None = Field(
        None, description="fixes deal, seat, opponent and its answers; default: counted"
    )
    episode_id: str | None = Field(
        None, max_length=255, description="the client's name of the game"
    )
    game: str | None = Field(None, description="a game of the server; default: its first")
    opponent: str | None = Field(None, description="plays the other seats; default: drawn")
    seat: Annotated[int, Field(ge=0)] | None = Field(None, description="default: drawn")
    player: Annotated[str, Field(pattern=r"^[A-Za-z][\w.-]{0,63}$")] = Field(
        "client", description="the client's name in records and ratings"
    )


class StepRequest(_Strict):
    """Data of `step`: the client's answer to `messages`."""

    message: str = Field(description="answer that contains the action, as a model writes it")
    metadata: dict[str, Any] = Field({}, description="ignored")


class ClientView(_Strict):
    """The observation of a client: its seat's view of the game, or the result."""

    messages: list[dict[str, str]] = Field(description="chat with the position; empty at the end")
    legal_moves: list[str] | None = Field(description="None if the game does not list them")
    game: str = Field(description="the game's name")
    seat: int = Field(description="the client's seat, from 0")
    opponent: str = Field(description="player of the other seats")
    result: dict[str, Any] | None = Field(
        None, description="at the end: outcomes and payoffs by seat, forfeit, truncated, reason"
    )


class ClientTurn(NamedTuple):
    """Answer to `reset` or `step`; the reward is None before the game's end."""

    observation: ClientView
    reward: float | None = None
    done: bool = False


class SessionState(_Strict):
    """The state of a session."""

    episode_id: str | None = Field(description="the client's name of the game, or its number")
    step_count: int = Field(description="steps of the client in this game")
    game_id: int | None = Field(
        description="the game's number in the records, its seed; None: no game"
    )


class Session(Protocol):
    """The games of one client."""

    async def reset(self, asked: ResetRequest) -> ClientTurn:
        """Deal a game, and return its first observation; a game in play ends."""

    async def step(self, message: str) -> ClientTurn:
        """Play the client's answer, and return its next observation; raises `SessionError`."""

    def state(self) -> SessionState:
        """Return the current game's number and the steps in it."""

    async def close(self) -> None:
        """End a game in play."""


class Sessions(Protocol):
    """All sessions of a server."""

    about: Mapping[str, str]
    """Name and description of the environment."""
    most: int
    """Maximum number of sessions at once."""

    def open(self) -> Session:
        """Return a new session."""


def openenv_application(sessions: Sessions, token: str | None) -> Starlette:
    """Return the application; clients need `token`, if any, as a bearer token."""
    in_play = 0

    def may(http: HTTPConnection) -> bool:
        return token is None or is_token(token_of(http), token)

    async def websocket(socket: WebSocket) -> None:
        nonlocal in_play
        if not may(socket):
            await socket.close(code=1008, reason=_NO_TOKEN)
            return
        await socket.accept()
        if in_play >= sessions.most:
            why = f"all {sessions.most} sessions are in use; raise --actors.games_in_flight"
            await socket.send_json(_error("CAPACITY_REACHED", why))
        else:
            in_play += 1
            session = sessions.open()
            try:
                await _converse(socket, session)
            finally:
                await session.close()
                in_play -= 1
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):  # the client was first
            await socket.close()

    def told(content: Any) -> Callable[[HttpRequest], Response]:
        def answer(http: HttpRequest) -> Response:
            return JSONResponse(content) if may(http) else JSONResponse(_NO_TOKEN, status_code=401)

        return answer

    kinds: dict[str, type[BaseModel]] = {
        "action": StepRequest,
        "observation": ClientView,
        "state": SessionState,
    }
    return Starlette(
        routes=[
            Route("/health", lambda http: JSONResponse({"status": "healthy"})),
            Route("/metadata", told({**sessions.about})),
            Route("/schema", told({name: kinds[name].model_json_schema() for name in kinds})),
            WebSocketRoute("/ws", websocket),
        ]
    )


async def _converse(socket: WebSocket, session: Session) -> None:
    """Answer a client's messages until it closes the session or disconnects, even meanwhile."""
    messages: asyncio.Queue[str | None] = asyncio.Queue(_MOST_WAITING)

    async def read() -> None:
        while (message := await socket.receive())["type"] != _GONE:
            await messages.put(message.get("text"))

    async def write() -> None:
        while (answer := await _answered(session, await messages.get())) is not None:
            await socket.send_json(answer)

    reading, writing = asyncio.create_task(read()), asyncio.create_task(write())
    try:
        await asyncio.wait([reading, writing], return_when=asyncio.FIRST_COMPLETED)
        if writing.done():
            with contextlib.suppress(WebSocketDisconnect):
                writing.result()
    finally:
        await ended(reading, writing)


async def _answered(session: Session, given: str | None) -> dict[str, Any] | None:
    """Return the answer to a message, such as an error; None for `close`."""
    try:
        return await _answer(session, given)
    except SessionError as error:
        return _error(error.code, one_line(str(error)))


async def _answer(session: Session, given: str | None) -> dict[str, Any] | None:
    """Return the answer to a message; None for `close`. Raises `SessionError` for a mistake."""
    if given is None:
        raise SessionError("INVALID_JSON", "not a text message; send JSON")
    if len(given) > MOST_BYTES:
        raise SessionError("VALIDATION_ERROR", f"the message exceeds {MOST_BYTES} characters")
    try:
        message = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise SessionError("INVALID_JSON", f"not JSON: {error}") from None
    if not isinstance(message, dict):
        raise SessionError("VALIDATION_ERROR", "a message is an object with a type")
    kind, data = message.get("type"), message.get("data", {})
    if kind == "reset":
        return _seen(await session.reset(_read(ResetRequest, data)))
    if kind == "step":
        return _seen(await session.step(_read(StepRequest, data).message))
    if kind == "state":
        return {"type": "state", "data": session.state().model_dump()}
    if kind == "close":
        return None
    raise SessionError("UNKNOWN_TYPE", f"type = {shown(kind)}: use reset, step, state or close")


def _read(kind: type[T], data: Any) -> T:
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        known = ", ".join(kind.model_fields)
        name = shown(".".join(map(str, first["loc"])) or "data")
        raise SessionError("VALIDATION_ERROR", f"{name}: {first['msg']}; known: {known}") from None


def _seen(seen: ClientTurn) -> dict[str, Any]:
    data = {**seen._asdict(), "observation": seen.observation.model_dump()}
    return {"type": "observation", "data": data}


def _error(code: Code, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code}}
