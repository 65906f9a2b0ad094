"""A GPU's memory, waited for: what a killed process held comes back a while after it.

An engine that starts meanwhile finds too little, or, as it measures, more than there was.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from unstable.planning.machine import NVMLError, find_card, opened_nvml

log = logging.getLogger(__name__)
WAIT_S = 90.0
LOOK_S = 1.0
_STEADY = 0.01  # of a card's memory; more is still being given back


def free_shares(gpus: Sequence[str]) -> list[float]:
    """Return each card's share of free memory; none where NVML does not answer."""
    try:
        with opened_nvml() as nvml:
            if nvml is None:
                return []
            read = [nvml.nvmlDeviceGetMemoryInfo(find_card(nvml, gpu)) for gpu in gpus]
            return [memory.free / memory.total for memory in read]
    except NVMLError:
        return []


async def until_free(
    gpus: Sequence[str],
    share: float,
    read: Callable[[Sequence[str]], list[float]] = free_shares,
    wait_s: float = WAIT_S,
    look_s: float = LOOK_S,
) -> bool:
    """Wait until so much of each card is free, and stays so; False where it never is in time."""
    deadline, before = time.monotonic() + wait_s, read(gpus)
    while before:
        await asyncio.sleep(look_s)
        now = read(gpus)
        steady = all(abs(a - b) < _STEADY for a, b in zip(now, before, strict=False))
        if steady and min(now, default=1.0) >= share:
            return True
        if time.monotonic() >= deadline:
            log.warning(
                "GPU %s: %.0f %% is free, of %.0f %% wanted", gpus, 100 * min(now), 100 * share
            )
            return False
        before = now
    return True
