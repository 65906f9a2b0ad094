"""Games that external programs play: a program takes a game, queries its seats, posts the result.

`POST /games` waits for a game and returns its seats; each seat is a base URL of OpenAI's API with
its own key; `POST /game/<id>/result` ends the game with a key that only its program has. No other
address reveals a seat's requests and answers.
"""

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from unstable.serving.app import body_of, token_of, unless_gone
from unstable.serving.replies import ServedSeat
from unstable.serving.requests import ApiError, is_token

PREFIX = "/game/{game}/seat/{seat:int}"
_LONGEST_WAIT_S, _SHARED_WAIT_S = 30.0, 2.0
_REMEMBERED = 10_000  # finished games whose ids are kept, to reject a second result
_KEY_BYTES = 16


class Posted(BaseModel):
    """A program's result of a game. Posted(payoffs=[1, -1])"""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)
    payoffs: list[float] | None = Field(None, description="payoff per seat, in the game's unit")
    forfeit: Annotated[int, Field(ge=0)] | None = Field(
        None, description="seat that forfeits; excludes payoffs"
    )
    truncated: bool = Field(False, description="True if the game was cut off without a winner")
    error: str | None = Field(None, description="why the game failed")
    reason: str = Field("", description="why the game ended, for people")

    @model_validator(mode="after")
    def _says_one_thing(self) -> "Posted":
        said = (self.payoffs is not None, self.forfeit is not None, self.truncated)
        if sum((*said, self.error is not None)) != 1:
            raise ValueError("give exactly one of payoffs, forfeit, truncated, error")
        return self


class HostedGame:
    """One game for a program to play; `told` is its description for the program, without the seats.

    With `driver` only the run's own driver of that name receives it. `refuse` raises `ValueError`
    for an impossible result.
    """

    def __init__(
        self,
        told: Mapping[str, Any],
        seats: Sequence[ServedSeat],
        driver: str = "",
        refuse: Callable[[Posted], None] = lambda posted: None,
    ) -> None:
        self.refuse = refuse
        self.id = secrets.token_hex(_KEY_BYTES)
        self.told, self.seats, self.driver = told, seats, driver
        self.key = secrets.token_urlsafe(_KEY_BYTES)  # key for posting the result
        self.keys = [secrets.token_urlsafe(_KEY_BYTES) for _ in seats]
        self.taken = asyncio.Event()
        self.posted: asyncio.Future[Posted] = asyncio.get_running_loop().create_future()
        self.asking = 0  # requests in flight
        self.asked_s = time.monotonic()  # when a request last started or ended

    @property
    def silent_s(self) -> float:
        """Seconds since the program's last request to a seat, not counting time to answer."""
        return 0.0 if self.asking else time.monotonic() - self.asked_s


class _Counted:
    """A seat that counts its requests in flight, and answers until the game is over."""

    def __init__(self, table: HostedGame, seat: ServedSeat) -> None:
        self._table, self._seat = table, seat
        self.strings = seat.strings

    def models(self) -> Sequence[str]:
        return self._seat.models()

    async def answer(self, request: Any, told: Any) -> Any:
        table = self._table
        table.asking += 1
        try:
            return await self._seat.answer(request, told)
        finally:
            table.asking -= 1
            table.asked_s = time.monotonic()

    async def count(self, request: Any) -> int:
        return await self._seat.count(request)


class HostedGames:
    """All games at one port that wait for a program or are in play."""

    def __init__(self, token: str | None = None, *, shared: bool = False) -> None:
        """Create an empty list; programs need `token` to take a game, None admits all.

        If other processes share the port where programs take games, each wait is short and closes
        its connection, so that a program reaches all processes.
        """
        self.port = 0  # port of the seats, set when it is open
        self._shared = shared
        self.token = token
        self._waiting: deque[HostedGame] = deque()
        self._takers: deque[tuple[_PendingRequest, asyncio.Future[HostedGame]]] = deque()
        self._is_over = False
        self._open: dict[str, HostedGame] = {}  # waiting or taken
        self._over: deque[str] = deque(maxlen=_REMEMBERED)
        self.taken_s = time.monotonic()  # when a game was last taken

    def offer(self, table: HostedGame) -> None:
        """Offer a game to the first waiting program that fits, or else to later ones."""
        self._open[table.id] = table
        for place, (asked, given) in enumerate(self._takers):
            if asked.fits(table) and not given.done():
                del self._takers[place]
                given.set_result(table)
                return
        self._waiting.append(table)

    def close(self) -> None:
        """Refuse all programs that wait for a game, now and later."""
        self._is_over = True
        for _, given in self._takers:
            given.cancel()

    def withdraw(self, table: HostedGame) -> None:
        """Remove a game that is over, whether finished or failed."""
        if self._open.pop(table.id, None) is not None:
            self._over.append(table.id)
        if not table.taken.is_set() and table in self._waiting:
            self._waiting.remove(table)

    def of(self, driver: str) -> list[HostedGame]:
        """Return the unfinished games of one of the run's own drivers."""
        return [table for table in self._open.values() if table.driver == driver]

    def seat(self, path: Mapping[str, Any], token: str | None) -> ServedSeat:
        """Return the seat of an open game, for clients with its key; raises `ApiError`."""
        table = self._table(path["game"])
        number = path["seat"]
        # A missing seat gets the same error as a wrong key.
        if number >= len(table.seats) or not is_token(token, table.keys[number]):
            raise ApiError(401, "missing or wrong key of this seat", code="invalid_api_key")
        if table.posted.done():
            raise ApiError(409, "the game is over", code="game_over")
        return _Counted(table, table.seats[number])

    def routes(self) -> list[BaseRoute]:
        """Return the routes for taking games and posting results."""
        return [
            Route("/games", self._take, methods=["POST"]),
            Route("/game/{game}/result", self._result, methods=["POST"]),
        ]

    def _table(self, name: str) -> HostedGame:
        if name in self._open:
            return self._open[name]
        if name in self._over:
            raise ApiError(409, "the game is over", code="game_over")
        raise ApiError(404, "unknown game", code="no_such_game")

    async def _take(self, http: HttpRequest) -> Response:
        """Respond with a game as soon as one is available; 204 if none is within half a minute."""
        if self.token is not None and not is_token(token_of(http), self.token):
            raise ApiError(401, "missing or wrong bearer token", code="invalid_api_key")
        asked = _read(_PendingRequest, await body_of(http) or b"{}")
        again = {"Connection": "close"} if self._shared else {}
        giving = asyncio.create_task(self._given(asked))
        try:
            table = await unless_gone(http, giving)
        except ApiError:
            self._take_back(giving)
            raise
        if table is None:
            return Response(status_code=204, headers=again)
        table.asked_s = self.taken_s = time.monotonic()
        table.taken.set()
        host = http.url.hostname or "127.0.0.1"
        host = f"[{host}]" if ":" in host else host
        base = f"{http.url.scheme}://{host}:{self.port}/game/{table.id}"
        seats = [
            {"base_url": f"{base}/seat/{number}/v1", "api_key": key}
            for number, key in enumerate(table.keys)
        ]
        told = {"game": table.id, **table.told, "seats": seats}
        told |= {"result_url": f"{base}/result", "result_key": table.key}
        return JSONResponse(told, headers=again)

    def _take_back(self, giving: "asyncio.Task[HostedGame | None]") -> None:
        """Offer a game again that was assigned while its program disconnected."""
        if giving.cancelled() or giving.exception() is not None:
            return
        if (table := giving.result()) is not None and table.id in self._open:
            self.offer(table)

    async def _given(self, asked: "_PendingRequest") -> HostedGame | None:
        """Return a fitting game as soon as one is available; None after the timeout."""
        if self._is_over:
            raise ApiError(410, "the run is over", code="run_over")
        for table in self._waiting:
            if asked.fits(table):
                self._waiting.remove(table)
                return table
        given = asyncio.get_running_loop().create_future()
        taker = (asked, given)
        self._takers.append(taker)
        try:
            longest = _SHARED_WAIT_S if self._shared else _LONGEST_WAIT_S
            # Python 3.12's wait_for drops a result that arrives together with the timeout.
            await asyncio.wait([given], timeout=min(asked.wait, longest))
            if given.cancelled():
                raise ApiError(410, "the run is over", code="run_over")
            return given.result() if given.done() else None
        except asyncio.CancelledError:
            if given.done() and not given.cancelled():
                self.offer(given.result())
            raise
        finally:
            given.cancel()  # no effect once it is done
            if taker in self._takers:
                self._takers.remove(taker)

    async def _result(self, http: HttpRequest) -> Response:
        """Accept the result of a game; malformed results leave the game unchanged.

        An impossible result is also refused, but the game has failed.
        """
        table = self._table(http.path_params["game"])
        if not is_token(token_of(http), table.key):
            raise ApiError(401, "missing or wrong result_key of this game", code="invalid_api_key")
        posted = _read(Posted, await body_of(http))
        seats = len(table.seats)
        if posted.payoffs is not None and len(posted.payoffs) != seats:
            raise ApiError(400, f"payoffs: give {seats} numbers, one per seat", param="payoffs")
        if posted.forfeit is not None and posted.forfeit >= seats:
            raise ApiError(400, f"forfeit: must be <= {seats - 1}, the last seat", param="forfeit")
        if table.posted.done():
            raise ApiError(409, "the game is over", code="game_over")
        table.posted.set_result(posted)
        try:
            table.refuse(posted)
        except ValueError as error:
            raise ApiError(422, f"the game failed: {error}", code="no_such_result") from None
        return JSONResponse({"game": table.id, "over": True})


class _PendingRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    env: str | None = None  # only env that the program plays; None: all
    driver: str = ""
    wait: Annotated[float, Field(ge=0)] = _LONGEST_WAIT_S

    def fits(self, table: HostedGame) -> bool:
        """Return whether the program may play this game and requests its env."""
        return table.driver == self.driver and self.env in (None, table.told["env"])


def _read(kind: type[Any], body: bytes) -> Any:
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(map(str, first["loc"]))
        message = f"{name}: {first['msg']}" if name else first["msg"]
        raise ApiError(400, message, param=name or None) from None
