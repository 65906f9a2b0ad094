"""Games in separate processes: code that blocks, exits or crashes costs only its own game.

The game's process holds the env, its legal moves, experts, bots and endpoints. Local models answer
from the actor's process, which has the engine. A turn that exceeds its timeout ends the process,
even if it is blocked.
"""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, cast

from unstable.collectors.play import play_game, players_of
from unstable.collectors.players import player_class
from unstable.collectors.players.base import (
    MovesNeeded,
    OpponentPlayer,
    Player,
    Position,
    ToldPosition,
)
from unstable.config import FixedOpponent, GameConfig
from unstable.processes.fork_server import ForkServer
from unstable.processes.frames import frame, read_frame, receive_frame
from unstable.types import Answer, GameFailure, GameResult, GameSpec, Observation, SeatSpec, Turn
from unstable.types.processes import ProcessId

START_S = 120.0
"""Seconds until a game's process answers: the first one waits for imports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GameJob:
    """A game, with everything that its process needs to play it."""

    spec: GameSpec
    config: GameConfig
    opponents: dict[str, FixedOpponent]
    run_seed: int
    shared: Sequence[Turn]
    first: Answer | None
    trusted: bool
    moves: MovesNeeded  # information on a position's moves that models need


class Ask(NamedTuple):
    """A game's request to a local model for the answer to an observation."""

    seat: SeatSpec  # the model's seat
    observation: Observation
    position: ToldPosition
    seed: int


class GameMessage(NamedTuple):
    """A message from a game's process."""

    kind: Literal["begun", "turn", "ask", "result", "failure"]
    content: Any = None  # a `ProcessId`, None, an `Ask`, a `GameResult`, a `GameFailure`


class IsolatedGameError(Exception):
    """An error for a game that failed in its process."""

    def __init__(self, failure: GameFailure) -> None:
        super().__init__(failure.error)
        self.failure = failure


async def play_isolated(
    job: GameJob, fork_server: ForkServer, make: Callable[[SeatSpec], Player]
) -> GameResult:
    """Play a game in a separate process; `make` creates the local model of a seat.

    Raises `IsolatedGameError` for an exception in that process, `TimeoutError` if a turn takes too
    long, and `RuntimeError` if the process has ended.
    """
    reader, writer = await asyncio.open_unix_connection(sock=fork_server.fork())
    process = _GameProcess(reader, writer, job.config)
    try:
        begun = await process.read(START_S)
        process.id = begun.content
        process.send(job)
        models: dict[SeatSpec, Player] = {}
        while True:
            message = await process.read(job.config.turn_timeout)
            if message.kind == "result":
                return cast(GameResult, message.content)
            if message.kind == "failure":
                raise IsolatedGameError(message.content)
            if message.kind == "ask":
                ask: Ask = message.content
                if ask.seat not in models:
                    models[ask.seat] = make(ask.seat)
                answer = await models[ask.seat].act(ask.observation, ask.position, ask.seed)
                process.send(answer)
    finally:
        process.end()


class _GameProcess:
    """A game's process, seen from the actor."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, config: GameConfig
    ) -> None:
        self.id: ProcessId | None = None
        self._reader, self._writer, self._config = reader, writer, config

    def send(self, value: object) -> None:
        self._writer.write(frame(value))

    async def read(self, seconds: float) -> GameMessage:
        try:
            async with asyncio.timeout(seconds):
                return cast(GameMessage, await receive_frame(self._reader))
        except TimeoutError:
            what = "a turn exceeded games.turn_timeout =" if self.id else "its start exceeded"
            raise TimeoutError(
                f"{self._config.key}: {what} {seconds:g} s; the game's process was killed"
            ) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise RuntimeError(f"{self._config.key}: the game's process crashed") from None

    def end(self) -> None:
        """Kill the process, which waits for this when its game is over; no-op if it is gone."""
        if self.id is not None:
            self.id.send(signal.SIGKILL)
        self._writer.close()


# The code below runs in the game's process.


class _Connection:
    """A game process's connection to the actor."""

    def __init__(self, connection: socket.socket) -> None:
        self._stream = connection.makefile("rwb")

    def send(self, kind: Any, content: object = None) -> None:
        self._stream.write(frame(GameMessage(kind, content)))
        self._stream.flush()

    def read(self) -> Any:
        return read_frame(self._stream.read)

    def wait_for_end(self) -> None:
        """Wait until the actor has ended this process, or is gone itself."""
        self._stream.read(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ProxyPlayer:
    """A local model, which answers from the actor's process."""

    connection: _Connection
    seat: SeatSpec
    moves: MovesNeeded

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        position = ToldPosition(
            config=game.config,
            turns=game.turns,
            legal=None if self.moves == "none" else game.legal_moves(),
            expert=game.expert_moves() if self.moves == "expert" else None,
            rules=game.rule_moves() if self.moves == "rules" else None,
            state=game.whole_state() if self.moves == "state" else None,
        )
        self.connection.send("ask", Ask(self.seat, observation, position, seed))
        return cast(Answer, self.connection.read())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ticking:
    """Any other player; tells the actor when a turn begins."""

    connection: _Connection
    player: Player

    @property
    def per_game(self) -> bool:
        return bool(getattr(self.player, "per_game", False))

    async def act(self, observation: Observation, game: Position, seed: int) -> Answer:
        self.connection.send("turn")
        return await self.player.act(observation, game, seed)


def _player(job: GameJob, connection: _Connection, seat: SeatSpec) -> Player:
    model = _ProxyPlayer(connection=connection, seat=seat, moves=job.moves)
    opponent = job.opponents.get(seat.player.name)
    if opponent is None:
        return model
    kind: type[OpponentPlayer] = player_class(opponent)
    player = kind.make(opponent, job.config, seat, lambda adapter: model)
    return player if player is model else _Ticking(connection=connection, player=player)


async def _play(job: GameJob, connection: _Connection) -> None:
    spec = job.spec
    try:
        players = players_of(spec, partial(_player, job, connection))
        result = await play_game(
            spec, job.config, players, job.run_seed, job.shared, job.first, trusted=job.trusted
        )
    except BaseException as error:  # any error fails this game only
        connection.send("failure", GameFailure.of(spec, error))
    else:
        connection.send("result", result)
    connection.wait_for_end()
    os._exit(0)  # even if the game has left threads running


def serve_game(connection: socket.socket) -> None:
    """Play the one game of a forked process."""
    actor = _Connection(connection)
    actor.send("begun", ProcessId.own())
    asyncio.run(_play(actor.read(), actor))
