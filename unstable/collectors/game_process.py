"""The process of isolated games: forks one for each, which plays it and ends.

    python -m unstable.collectors.game_process DESCRIPTOR [MODULE...]

`DESCRIPTOR` is a socket's, over which `collectors/isolation.py` sends the socket of each game.
Its end is the end of all games. The modules are imported once, before any game.
"""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from unstable.collectors.isolation import Ask, Job, Message, frame, read_frame
from unstable.collectors.play import play_game, players_of
from unstable.collectors.players.base import OpponentPlayer, Player
from unstable.collectors.players.kinds import player_class
from unstable.config import MovesKept
from unstable.config.plugins import import_all
from unstable.games.game import Game
from unstable.types import Answer, GameFailure, Observation, SeatSpec
from unstable.types.processes import ProcessId


class _Connection:
    """The way to the actor."""

    def __init__(self, connection: socket.socket) -> None:
        self._stream = connection.makefile("rwb")

    def send(self, kind: Any, content: object = None) -> None:
        self._stream.write(frame(Message(kind, content)))
        self._stream.flush()

    def read(self) -> Any:
        return read_frame(self._stream.read)

    def wait_for_end(self) -> None:
        """Until the actor has ended this process, or is gone itself."""
        self._stream.read(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """A local model, which answers from the actor's process."""

    connection: _Connection
    seat: SeatSpec
    moves: MovesKept

    async def act(self, observation: Observation, game: Game, seed: int) -> Answer:
        legal = None if self.moves == "none" else game.legal_moves()
        expert = game.expert_moves() if self.moves == "expert" else None
        self.connection.send("ask", Ask(self.seat, observation, seed, legal, expert))
        return cast(Answer, self.connection.read())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ticking:
    """Any other player; the actor has to know that a turn has begun."""

    connection: _Connection
    player: Player

    async def act(self, observation: Observation, game: Game, seed: int) -> Answer:
        self.connection.send("turn")
        return await self.player.act(observation, game, seed)


def _player(job: Job, connection: _Connection, seat: SeatSpec) -> Player:
    model = _Model(connection=connection, seat=seat, moves=job.moves)
    opponent = job.opponents.get(seat.player.name)
    if opponent is None:
        return model
    kind: type[OpponentPlayer] = player_class(opponent)
    player = kind.make(opponent, job.config, seat, lambda adapter: model)
    return player if player is model else _Ticking(connection=connection, player=player)


async def _play(job: Job, connection: _Connection) -> None:
    spec = job.spec
    try:
        players = players_of(spec, partial(_player, job, connection))
        result = await play_game(
            spec, job.config, players, job.run_seed, job.shared, job.first, trusted=job.trusted
        )
    except BaseException as error:  # the fault border of a game
        connection.send("failure", GameFailure.of(spec, error))
    else:
        connection.send("result", result)
    connection.wait_for_end()
    os._exit(0)  # whatever the game has left running


def _serve(connection: _Connection) -> None:
    """Play the one game of this process."""
    connection.send("begun", ProcessId.own())
    asyncio.run(_play(connection.read(), connection))


def main(descriptor: int, modules: Sequence[str]) -> None:
    """Fork a process for each game that is asked for, until nobody can ask any more."""
    control = socket.socket(fileno=descriptor)
    import_all(modules)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a game's process
    while True:
        asked, games, _, _ = socket.recv_fds(control, 1, 1)
        if not asked:
            os.killpg(0, signal.SIGKILL)  # this process as well
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                _serve(_Connection(socket.socket(fileno=games[0])))
            finally:
                os._exit(0)
        os.close(games[0])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
