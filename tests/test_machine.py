"""What a machine has: read without torch, and as CUDA would show it."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import psutil
import pytest

from tests.machine_helpers import machine
from unstable import machine as room
from unstable.machine import this_machine


def test_this_machine_has_what_its_system_says() -> None:
    here = this_machine()
    assert 1 <= here.cores <= (psutil.cpu_count() or 1)
    assert 0 < here.free_bytes <= here.memory_bytes <= psutil.virtual_memory().total
    assert here.packages["torch"].startswith("2.")
    assert here.summary.startswith(f"{here.cores} cores, ")


def test_a_containers_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(room, "_MEMORY_LIMIT", limit)
    for text, expected in (("max\n", 100), ("60\n", 60), ("1000\n", 100)):
        limit.write_text(text)
        assert room._memory_limit(100) == expected
    limit.unlink()
    assert room._memory_limit(100) == 100


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [
        (None, ["0", "1", "2"]),
        ("", []),
        ("-1", []),
        ("2, 0", ["2", "0"]),
        ("0,7,1", ["0"]),  # CUDA stops at what is no card
        ("GPU-ab,1", ["GPU-ab", "1"]),
    ],
)
def test_cards_are_those_that_cuda_would_show(
    chosen: str | None, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert room._visible(3) == expected


class NoCard(Exception):
    """NVML's error."""


def nvml(*, works: bool) -> ModuleType:
    """A stand-in for pynvml with one card of 24 GB."""

    def begin() -> None:
        if not works:
            raise NoCard

    module = ModuleType("pynvml")
    memory = SimpleNamespace(total=24_000_000_000, free=23_000_000_000)
    vars(module).update(
        NVMLError=NoCard,
        nvmlInit=begin,
        nvmlSystemGetCudaDriverVersion_v2=lambda: 13020,
        nvmlSystemGetDriverVersion=lambda: "580.82.07",
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: memory,
        nvmlDeviceGetCudaComputeCapability=lambda handle: (7, 5),
        nvmlDeviceGetName=lambda handle: "Tesla T4",
    )
    return module


def test_cards_are_read_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml(works=True))
    here = this_machine()
    (gpu,) = here.gpus
    assert (gpu.id, gpu.name, gpu.bfloat16) == ("0", "Tesla T4", False)
    assert (gpu.total_bytes, gpu.free_bytes) == (24_000_000_000, 23_000_000_000)
    assert (here.driver, here.driver_cuda) == ("580.82.07", "13.2")
    assert here.summary.endswith("1 x Tesla T4")
    monkeypatch.setitem(sys.modules, "pynvml", nvml(works=False))
    assert this_machine().gpus == ()


def test_cards_that_torch_cannot_use_are_told_with_a_remedy() -> None:
    assert machine(cards=2).cuda_problem is None
    assert len(machine(cards=2).usable_gpus) == 2
    built = machine(cards=2, torch_cuda=None)
    assert "without CUDA" in str(built.cuda_problem)
    old = machine(cards=2, driver="535.1", driver_cuda="12.2")
    assert "install a newer driver" in str(old.cuda_problem)
    assert built.usable_gpus == old.usable_gpus == ()
    assert machine(torch_cuda=None).cuda_problem is None
