"""Load of the machine: CPU, memory and, if NVML is available, GPUs."""

import time
from contextlib import suppress

import psutil

from unstable.planning.machine import NVMLError, find_card, opened_nvml

GB = 1e9


class DeviceProbe:
    """Reader of `device/*`, at most once per `max_age_s`, since listing processes takes time."""

    def __init__(self, max_age_s: float = 2.0) -> None:
        self._max_age_s = max_age_s
        self._process = psutil.Process()
        self._gpus = _gpu_handles()
        psutil.cpu_percent()  # the first call only sets the baseline
        self._read_at = time.monotonic()
        self._row = {**self._memory(), **self._gpu()}

    def read(self) -> dict[str, float]:
        """Return values by metric name."""
        if time.monotonic() - self._read_at >= self._max_age_s:
            self._read_at = time.monotonic()
            self._row = {
                "device/cpu_percent": psutil.cpu_percent(),
                **self._memory(),
                **self._gpu(),
            }
        return self._row

    def _memory(self) -> dict[str, float]:
        total = 0
        for process in [self._process, *self._process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):  # ended after it was listed
                total += process.memory_info().rss
        return {
            "device/process_memory_gb": total / GB,
            "device/memory_percent": psutil.virtual_memory().percent,
        }

    def _gpu(self) -> dict[str, float]:
        row = {}
        for index, handle in enumerate(self._gpus):
            name = f"device/gpu{index}"
            # NVML reports no utilization of a MIG slice, and nothing of a lost GPU.
            with suppress(NVMLError), opened_nvml() as nvml:
                if nvml is None:  # the driver was unloaded
                    break
                memory = nvml.nvmlDeviceGetMemoryInfo(handle)
                row[f"{name}_memory_gb"] = memory.used / GB
                row[f"{name}_memory_percent"] = 100 * memory.used / memory.total
                row[f"{name}_percent"] = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
        return row


def _gpu_handles() -> list[object]:
    """Return NVML's handles of the machine's GPUs; empty without the library or a driver."""
    with suppress(NVMLError), opened_nvml() as nvml:
        if nvml is not None:
            return [find_card(nvml, str(index)) for index in range(nvml.nvmlDeviceGetCount())]
    return []
