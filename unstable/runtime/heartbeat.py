"""Heartbeat: kills a process, or considers it dead, after a long time without a sign of life.

A process that is stopped, swapped out or deadlocked does not die by itself, and every call to it
would hang. So the driver polls an actor's counters. They must arrive and, while a call is in
progress, differ from the previous ones.
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
"""Seconds after which a process that remains unreachable counts as dead."""
PING_S, PAUSE_S = 2.0, 0.5


async def watch(
    name: str,
    stats: Callable[[], Awaitable[dict[str, float] | None]],
    is_waited_for: Callable[[], bool],
    end: Callable[[], None],
    limit_s: float,
) -> None:
    """Watch a process until cancelled: call `end` after `limit_s` seconds without a sign of life.

    `stats` returns the process's counters; None if it is dead, in which case the caller that awaits
    it restarts it. `is_waited_for` returns whether the process has work.
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
                "%s made no progress within loop.stall_timeout = %g s and is killed",
                name,
                limit_s,
            )
            end()
            alive, before = time.monotonic(), None


async def comes_back(ask: Callable[[], Awaitable[object]]) -> bool:
    """Poll a possibly unreachable process until it answers; return False if it counts as dead."""
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
