"""Games in processes of their own: what blocks, exits or crashes there costs that game alone.

The env, its legal moves, experts, bots and endpoints are in the game's process; local models answer
from here, as a process has no engine. A turn that is not over in its time ends the process,
whatever that is doing. `collectors/game_process.py` is the other side.
"""

import asyncio
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

from unstable.collectors.players.base import Player
from unstable.config import FixedOpponent, GameConfig, MovesKept
from unstable.games.game import Game
from unstable.types import Answer, GameFailure, GameResult, GameSpec, Observation, SeatSpec, Turn
from unstable.types.processes import ProcessId

START_S = 120.0
"""Seconds until a game's process answers: the first one waits for imports."""
_PROCESS = "unstable.collectors.game_process"
LENGTH = struct.Struct("!I")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A game, with all that its process needs to play it."""

    spec: GameSpec
    config: GameConfig
    opponents: dict[str, FixedOpponent]
    run_seed: int
    shared: Sequence[Turn]
    first: Answer | None
    trusted: bool
    moves: MovesKept  # what models have to be told of a position's moves


class Ask(NamedTuple):
    """What a game asks of a local model: the answer to an observation."""

    seat: SeatSpec  # whose player it is
    observation: Observation
    seed: int
    legal_moves: list[str] | None
    expert_moves: dict[str, float] | None


class Message(NamedTuple):
    """What a game's process sends."""

    kind: Literal["begun", "turn", "ask", "result", "failure"]
    content: Any = None  # a `ProcessId`, nothing, an `Ask`, a `GameResult`, a `GameFailure`


class IsolatedGameError(Exception):
    """A game that failed in its process."""

    def __init__(self, failure: GameFailure) -> None:
        super().__init__(failure.error)
        self.failure = failure


def frame(value: object) -> bytes:
    """A value as it goes between processes."""
    content = pickle.dumps(value)
    return LENGTH.pack(len(content)) + content


def read_frame(read: Callable[[int], bytes]) -> Any:
    """The next value, where `read` gives so many bytes."""
    return pickle.loads(read(LENGTH.unpack(read(LENGTH.size))[0]))


async def receive_frame(reader: asyncio.StreamReader) -> Any:
    """The next value; raises `IncompleteReadError` or `ConnectionError` where none comes."""
    size = LENGTH.unpack(await reader.readexactly(LENGTH.size))[0]
    return pickle.loads(await reader.readexactly(size))


def start_process(module: str, *arguments: str) -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    """A module as a process, and the connection to it: it is given the socket's descriptor first.

    It imports from where this process does, and hears no interrupt, which is ours to answer.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(theirs.fileno()), *arguments],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
    return ours, process


class HelperProcess:
    """A module's process, which is sent values over a socket and answers there."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._process: subprocess.Popen[bytes] | None = None
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it was started, and not ended by us."""
        return self._streams is not None

    async def start(self, first: object) -> None:
        """Start it, and send it what it needs."""
        connection, self._process = start_process(self._module)
        self._streams = await asyncio.open_unix_connection(sock=connection)
        self.send(first)

    def send(self, value: object) -> None:
        """Send it a value."""
        assert self._streams is not None
        self._streams[1].write(frame(value))

    async def receive(self) -> Any:
        """The next value that it sends; raises as `receive_frame` does."""
        assert self._streams is not None
        return await receive_frame(self._streams[0])

    def end(self) -> None:
        """Kill it, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


class ForkServer:
    """Makes a process a game, by forking one that has imported all that games need.

    These are our own modules and `modules`. It ends with this process, and all games with it.
    """

    def __init__(self, modules: Iterable[str]) -> None:
        self._modules = sorted(modules)
        self._process: subprocess.Popen[bytes] | None = None

    def make(self) -> socket.socket:
        """The connection to a new game's process."""
        if self._process is None or self._process.poll() is not None:
            self._begin()
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"+"], [theirs.fileno()])
        return ours

    def _begin(self) -> None:
        self._control, self._process = start_process(_PROCESS, *self._modules)

    def close(self) -> None:
        """End all games."""
        if self._process is not None:
            self._control.close()
            self._process.wait()
            self._process = None


async def play_isolated(
    job: Job, fork_server: ForkServer, make: Callable[[SeatSpec], Player]
) -> GameResult:
    """Play a game in a process of its own; `make` makes the local model of a seat.

    Raises `IsolatedGameError` for what it raised there, `TimeoutError` where a turn takes too
    long, and `RuntimeError` where its process has ended.
    """
    reader, writer = await asyncio.open_unix_connection(sock=fork_server.make())
    process = _Process(reader, writer, job.config)
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
                view = cast(Game, _View(job.config, ask.legal_moves, ask.expert_moves))
                process.send(await models[ask.seat].act(ask.observation, view, ask.seed))
    finally:
        process.end()


class _Process:
    """A game's process, from here."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, config: GameConfig
    ) -> None:
        self.id: ProcessId | None = None
        self._reader, self._writer, self._config = reader, writer, config

    def send(self, value: object) -> None:
        self._writer.write(frame(value))

    async def read(self, seconds: float) -> Message:
        try:
            async with asyncio.timeout(seconds):
                return cast(Message, await receive_frame(self._reader))
        except TimeoutError:
            raise TimeoutError(
                f"{self._config.key}: a turn was not over in games.turn_timeout = {seconds:g} s, "
                "and the game's process was ended"
            ) from None
        except (asyncio.IncompleteReadError, ConnectionError):
            raise RuntimeError(f"{self._config.key}: the game's process has ended") from None

    def end(self) -> None:
        """Kill it, which waits for this when its game is over; one that has gone is left alone."""
        if self.id is not None:
            self.id.send(signal.SIGKILL)
        self._writer.close()


class _View:
    """As much of a game as local models need."""

    def __init__(
        self,
        config: GameConfig,
        legal_moves: list[str] | None,
        expert_moves: dict[str, float] | None,
    ) -> None:
        self.config = config
        self._legal_moves, self._expert_moves = legal_moves, expert_moves

    def legal_moves(self) -> list[str]:
        assert self._legal_moves is not None, "asked for by `Job.moves`"
        return self._legal_moves

    def expert_moves(self) -> dict[str, float]:
        assert self._expert_moves is not None, "asked for by `Job.moves`"
        return self._expert_moves
