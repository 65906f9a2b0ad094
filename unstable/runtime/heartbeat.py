"""Signs of life of a process: one that gives none for long is ended, or taken for dead.

A process that is stopped, swapped out or deadlocked does not die by itself, and every call of it
would be waited for without end. So an actor's numbers are asked for again and again. They have to
come, and, while something is waited for, to differ from those before.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from ray.exceptions import ActorUnavailableError, RayError

log = logging.getLogger(__name__)
EVERY_S = 10.0
UNREACHED_S = 60.0
"""Seconds that a process which cannot be reached has to answer again, or to be found dead."""
PING_S, PAUSE_S = 2.0, 0.5


async def watch(
    name: str,
    stats: Callable[[], Awaitable[dict[str, float] | None]],
    is_waited_for: Callable[[], bool],
    end: Callable[[], None],
    limit_s: float,
) -> None:
    """Watch a process until cancelled: `end` it after `limit_s` seconds without a sign of life.

    `stats` asks it for its numbers, None of one that is dead: whoever waits for it starts it again.
    `is_waited_for` says whether it has anything to do.
    """
    alive, before = time.monotonic(), None
    while True:
        await asyncio.sleep(min(EVERY_S, limit_s / 4))
        numbers, answers = None, False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, alive + limit_s - time.monotonic())):
                numbers, answers = await stats(), True
        if answers and (numbers is None or numbers != before or not is_waited_for()):
            alive, before = time.monotonic(), numbers
        elif time.monotonic() >= alive + limit_s:
            log.error(
                "%s has given no sign of life in loop.stall_timeout = %g s and is ended",
                name,
                limit_s,
            )
            end()
            alive, before = time.monotonic(), None


async def comes_back(ask: Callable[[], Awaitable[object]]) -> bool:
    """Ask a process that may be out of reach until it answers; False where it is dead."""
    deadline = time.monotonic() + UNREACHED_S
    while time.monotonic() < deadline:
        try:
            async with asyncio.timeout(PING_S):
                await ask()
                return True
        except ActorUnavailableError:
            await asyncio.sleep(PAUSE_S)
        except RayError:
            return False
        except TimeoutError:
            continue
    return False
