"""The heartbeat never ends a process that answers and makes progress with its work."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import count

import pytest

from unstable.runtime.heartbeat import watch

LIMIT_S = 0.2


async def ends(
    stats: Callable[[], Awaitable[dict[str, float] | None]], waited_for: bool, expected: bool
) -> bool:
    """Return whether the watch ends a process with these answers; if it must not, wait 1 s."""
    ended: list[int] = []
    seconds = 60.0 if expected else 1.0
    watching = asyncio.create_task(
        watch("actor-0", stats, lambda: waited_for, lambda: ended.append(1), LIMIT_S)
    )
    deadline = time.monotonic() + seconds
    while not ended and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return bool(ended)


async def never() -> dict[str, float]:
    await asyncio.sleep(60)
    return {}


async def the_same() -> dict[str, float]:
    return {"turns": 3.0, "games_in_flight": 8.0}


async def dead() -> None:
    return None


@pytest.mark.parametrize(
    "stats, waited_for, is_ended",
    [
        (never, True, True),
        (never, False, True),
        (the_same, True, True),
        (the_same, False, False),
        (dead, True, False),
    ],
)
@pytest.mark.fault("an actor hangs", "a learner rank hangs or raises")
async def test_process_without_progress_is_killed(
    stats: Callable[[], Awaitable[dict[str, float] | None]],
    waited_for: bool,
    is_ended: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert await ends(stats, waited_for, is_ended) == is_ended
    line = "actor-0 made no progress within loop.stall_timeout = 0.2 s and is killed"
    assert (line in caplog.messages) == is_ended


async def test_process_with_progress_is_not_killed() -> None:
    turns = count()

    async def stats() -> dict[str, float]:
        return {"turns": float(next(turns))}

    assert not await ends(stats, waited_for=True, expected=False)
