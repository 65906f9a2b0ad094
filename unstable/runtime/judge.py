"""A user's plain reward terms, asked in a process of their own: one that never ends is ended there.

    python -m unstable.runtime.judge DESCRIPTOR

is that process: over the socket it gets the terms, then games, and answers each with the terms'
values; None says before it that the process, or a call, begins. An alarm ends what takes too long,
and reaches a process's main thread alone, where an actor has no code of its own. Where even that
does not help, as in a library that never comes back to the interpreter, the process is killed.
"""

import asyncio
import socket
import sys
import threading
from collections.abc import Mapping, Sequence

from unstable.collectors.isolation import HelperProcess, frame, read_frame
from unstable.config import JudgeConfig, RewardConfig, RunConfig
from unstable.config.plugins import faults_to
from unstable.records.folder import RunFolder
from unstable.rewards.terms import Rewards, Values
from unstable.solving.solver import end_with_asker
from unstable.types import GameFailure, GameResult

_MODULE = "unstable.runtime.judge"
GRACE_S = 10.0
"""Beyond the time of a call, for the alarm to end it."""
START_S = 120.0
"""Until the process has imported what the terms need."""


def judging(config: RunConfig, folder: RunFolder) -> Rewards:
    """The config's terms, as one of a run's actors asks them."""
    terms, judges = config.buffer.rewards, config.judges
    return Rewards(
        terms,
        judges,
        among=config.actors.sharing,
        apart=Judge(terms, judges),
        cache=folder.answers,
    )


class Judge:
    """Asks the plain terms of a user's, a game at a time; the process begins with the first."""

    def __init__(self, terms: Sequence[RewardConfig], judges: Mapping[str, JudgeConfig]) -> None:
        self._terms = list(terms), dict(judges)
        self._timeout_s = max(each.judge_in(judges).timeout for each in terms)
        self._turn = asyncio.Lock()
        self._process = HelperProcess(_MODULE)

    async def __call__(self, result: GameResult) -> Values | GameFailure:
        """The values, as `Rewards.plain_values` has them, or what became of the game."""
        async with self._turn:
            limit_s = self._timeout_s + GRACE_S
            try:
                if not self._process.is_running:
                    await self._begin()
                self._process.send(result)
                answer: Values | GameFailure | None = None
                while answer is None:
                    async with asyncio.timeout(limit_s):
                        answer = await self._process.receive()
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

    async def _begin(self) -> None:
        async with asyncio.timeout(START_S):
            await self._process.start(self._terms)
            await self._process.receive()

    def close(self) -> None:
        """End the process."""
        self._process.end()


def main(descriptor: int) -> None:
    """Answer until nobody can ask any more."""
    connection = socket.socket(fileno=descriptor)
    threading.Thread(target=end_with_asker, args=(descriptor,), daemon=True).start()
    stream = connection.makefile("rwb")
    rewards = Rewards(*read_frame(stream.read))

    def send(value: Values | GameFailure | None) -> None:
        stream.write(frame(value))
        stream.flush()

    send(None)
    while True:
        result: GameResult = read_frame(stream.read)
        faults: list[BaseException] = []
        answer: Values | GameFailure = []
        with faults_to(faults.append):
            answer = rewards.plain_values(result, begins=lambda: send(None))
        if faults:
            answer = GameFailure.of(result.spec, faults[0])
        send(answer)


if __name__ == "__main__":
    main(int(sys.argv[1]))
