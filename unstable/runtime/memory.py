"""Free GPU memory: the driver releases a killed process's memory some time after its end.

An engine that starts before then finds too little memory, or measures it while it still grows.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence

from unstable.planning.machine import NVMLError, find_card, opened_nvml

log = logging.getLogger(__name__)
WAIT_S = 90.0
LOOK_S = 1.0
_STEADY = 0.01  # share of a GPU's memory; a larger change means that memory is still being freed


def free_shares(gpus: Sequence[str]) -> list[float]:
    """Return the free share of each GPU's memory, in [0, 1]; empty if NVML is unavailable."""
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
    """Wait until a stable `share` of each GPU's memory is free; return False on a timeout."""
    deadline, before = time.monotonic() + wait_s, read(gpus)
    while before:
        await asyncio.sleep(look_s)
        now = read(gpus)
        steady = all(abs(a - b) < _STEADY for a, b in zip(now, before, strict=False))
        if steady and min(now, default=1.0) >= share:
            return True
        if time.monotonic() >= deadline:
            log.warning(
                "GPU %s: %.0f %% of memory free, %.0f %% needed", gpus, 100 * min(now), 100 * share
            )
            return False
        before = now
    return True
