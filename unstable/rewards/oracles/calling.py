"""Calls that may fail: with limited concurrency, timeouts, and retries after a pause."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from unstable.config.plugins import faults_to
from unstable.config.remote import backoff
from unstable.rewards.oracles.base import OracleCounts

T = TypeVar("T")
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 8.0
_WEIGHT = 0.2  # of the newest call in `typical_s`
_LONGEST_WAIT_S = 60.0
"""Longest pause in seconds that a service may request: no game waits longer for a retry."""


class Caller:
    """The calls of a term, with counts."""

    def __init__(
        self, name: str, *, at_once: int, timeout: float, retries: int, counts: OracleCounts
    ) -> None:
        """Create it; `timeout` is per attempt, in seconds, not counting the wait for a slot."""
        self._name = name
        self._slots = asyncio.Semaphore(at_once)
        self._timeout = timeout
        self._retries = retries
        self._counts = counts
        self.typical_s = 0.0
        """Moving average of a call's seconds."""

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the call's result; raises the last attempt's error."""
        failed = 0
        while True:
            faults: list[BaseException] = []
            with faults_to(faults.append):
                return await self._once(call)
            (error,) = faults
            if failed >= self._retries or not getattr(error, "again", True):
                raise error
            pause_s: float | None = getattr(error, "pause_s", None)
            failed += 1
            self._counts.count("retried")
            if pause_s is None:
                pause_s = backoff(failed, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            await asyncio.sleep(pause_s)

    async def _once(self, call: Callable[[], Awaitable[T]]) -> T:
        try:
            async with self._slots:
                began = time.monotonic()
                self._counts.count("calls")
                try:
                    async with asyncio.timeout(self._timeout) as timer:
                        return await call()
                finally:
                    took = time.monotonic() - began
                    self._counts.add("seconds", took)
                    self.typical_s += _WEIGHT * (took - self.typical_s)
        except TimeoutError:
            if not timer.expired():
                raise
            limit = f"no reply within timeout = {self._timeout:g} s"
            raise TimeoutError(f"reward term {self._name}: {limit}") from None
        except (asyncio.CancelledError, SystemExit) as error:  # would end more than this task
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise RuntimeError(f"reward term {self._name} raised {error!r}") from error


def bounded_pause(seconds: float | None) -> float | None:
    """Limit a pause that a service requests to the time that a game may wait."""
    return None if seconds is None else min(seconds, _LONGEST_WAIT_S)
