"""A user's plain reward terms, asked in a process of their own: one that never ends is ended there.

    python -m unstable.runtime.judge DESCRIPTOR

is that process: over the socket it gets the terms, then games, and answers each with the terms'
values. An alarm ends what takes too long, and reaches a process's main thread alone, where an actor
has no code of its own. Where even that does not help, as in a library that never comes back to the
interpreter, the process is killed.
"""

import asyncio
import pickle
import socket
import sys
import threading
from collections.abc import Sequence
from subprocess import Popen

from unstable.collectors.isolation import LENGTH, frame, read_frame, start_process
from unstable.config import RewardConfig, RunConfig
from unstable.config.plugins import faults_to
from unstable.rewards.terms import Rewards, Values
from unstable.solving.solver import end_with_asker
from unstable.types import GameFailure, GameResult

_MODULE = "unstable.runtime.judge"
GRACE_S = 10.0
"""Beyond the time of a call, for the alarm to end it."""
START_S = 120.0
"""Until the process has imported what the terms need."""
_BEGINS, _ANSWERS = b"+", b"="
"""What it says as a call begins, or the process itself, and before an answer."""


def judging(config: RunConfig) -> Rewards:
    """The config's terms, as one of a run's actors asks them."""
    terms = config.buffer.rewards
    among = config.actors.num if isinstance(config.actors.num, int) else 1
    return Rewards(terms, among=max(1, among), apart=Judge(terms))


class Judge:
    """Asks the plain terms of a user's, a game at a time; the process begins with the first."""

    def __init__(self, terms: Sequence[RewardConfig]) -> None:
        self._terms = list(terms)
        self._turn = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._process: Popen[bytes] | None = None

    async def __call__(self, result: GameResult) -> Values | GameFailure:
        """The values, as `Rewards.plain_values` has them, or what became of the game."""
        async with self._turn:
            limit_s = max(term.timeout for term in self._terms) + GRACE_S
            try:
                reader, writer = self._streams or await self._begin()
                writer.write(frame(result))
                sign = _BEGINS
                while sign == _BEGINS:
                    async with asyncio.timeout(limit_s):
                        sign = await reader.readexactly(1)
                size = LENGTH.unpack(await reader.readexactly(LENGTH.size))[0]
                answer: Values | GameFailure = pickle.loads(await reader.readexactly(size))
                return answer
            except (TimeoutError, asyncio.IncompleteReadError, ConnectionError) as error:
                self.close()
                why = f"a reward term was not over in {limit_s:g} s"
                if not isinstance(error, TimeoutError):
                    why = "the process of its reward terms has ended"
                return GameFailure.of(result.spec, RuntimeError(why))
            except asyncio.CancelledError:
                self.close()  # its answer would be taken for the next game's
                raise

    async def _begin(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connection, self._process = start_process(_MODULE)
        reader, writer = self._streams = await asyncio.open_unix_connection(sock=connection)
        writer.write(frame(self._terms))
        async with asyncio.timeout(START_S):
            await reader.readexactly(1)
        return reader, writer

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


def main(descriptor: int) -> None:
    """Answer until nobody can ask any more."""
    connection = socket.socket(fileno=descriptor)
    threading.Thread(target=end_with_asker, args=(descriptor,), daemon=True).start()
    stream = connection.makefile("rwb")
    rewards = Rewards(read_frame(stream.read))

    def say(sign: bytes) -> None:
        stream.write(sign)
        stream.flush()

    say(_BEGINS)
    while True:
        result: GameResult = read_frame(stream.read)
        faults: list[BaseException] = []
        answer: Values | GameFailure = []
        with faults_to(faults.append):
            answer = rewards.plain_values(result, begins=lambda: say(_BEGINS))
        if faults:
            answer = GameFailure.of(result.spec, faults[0])
        say(_ANSWERS + frame(answer))


if __name__ == "__main__":
    main(int(sys.argv[1]))
