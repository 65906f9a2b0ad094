"""Resources of a machine: read without torch, with the cards that CUDA would show."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.helpers.machines import machine
from tests.helpers.rows import every_row
from unstable.commands.doctor import examine
from unstable.config import load
from unstable.planning import machine as machine_module
from unstable.planning.machine import this_machine


def test_this_machine_matches_the_system() -> None:
    here = this_machine()
    assert 1 <= here.cores <= (psutil.cpu_count() or 1)
    assert 0 < here.free_bytes <= here.memory_bytes <= psutil.virtual_memory().total
    assert here.packages["torch"].startswith("2.")
    assert here.summary.startswith(f"{here.cores} cores, ")


@every_row(
    "limit, used, cached, expected",
    (None, 0, 0, (100, 70)),
    ("max", 50, 0, (100, 70)),
    ("60", 20, 0, (60, 40)),
    ("60", 50, 45, (60, 55)),  # the page cache is freed on demand
    ("60", 61, 0, (60, 0)),
    ("1000", 20, 0, (100, 70)),
)
def test_container_memory_limit_applies(limit, used, cached, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(machine_module, "_CGROUP", tmp_path)
    memory = SimpleNamespace(total=100, available=70)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    if limit is not None:
        (tmp_path / "memory.max").write_text(f"{limit}\n")
        (tmp_path / "memory.current").write_text(f"{used}\n")
        (tmp_path / "memory.stat").write_text(f"anon 1\ninactive_file {cached}\nactive_file 2\n")
    assert machine_module._memory() == expected


@every_row(
    "files, expected",
    ({}, 8),
    ({"cpu.max": "max 100000\n"}, 8),
    ({"cpu.max": "250000 100000\n"}, 2),
    ({"cpu.max": "50000 100000\n"}, 1),
    ({"cpu.max": "1600000 100000\n"}, 8),
    ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
    ({"cpu/cpu.cfs_quota_us": "300000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
)
def test_container_cpu_quota_applies(files, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(machine_module, "_CGROUP", tmp_path)
    monkeypatch.setattr(machine_module.os, "sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert machine_module._cores() == expected


def test_package_versions_match_importable_ones(tmp_path, monkeypatch):
    for path, name, metadata in (
        ("first", "some_thing-2.0", "Name: Some.Thing\nVersion: 2.0\n"),
        ("first", "broken-1.0", None),
        ("second", "some_thing-1.0", "Name: some_thing\nVersion: 1.0\n"),
    ):
        folder = tmp_path / path / f"{name}.dist-info"
        folder.mkdir(parents=True)
        if metadata is not None:
            (folder / "METADATA").write_text(metadata)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "first"), str(tmp_path / "second")])
    assert machine_module._packages() == {"some-thing": "2.0"}


@every_row(
    "chosen, expected",
    (None, ["0", "1", "2"]),
    ("", []),
    ("-1", []),
    ("2, 0", ["2", "0"]),
    ("0,7,1", ["0"]),  # CUDA stops at the first invalid entry
    ("GPU-ab,1", ["GPU-ab", "1"]),
)
def test_visible_gpus_match_cuda(chosen, expected, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    assert machine_module._visible(3) == expected


class NVMLError(Exception):
    """Any error of NVML."""


class NoDriverError(NVMLError):
    """No driver is loaded."""


class NoLibraryError(NVMLError):
    """NVML's library is missing."""


def nvml(**fails: Exception) -> ModuleType:
    """A stand-in for pynvml with one card of 24 GB, whose functions may fail."""

    def fail(error: Exception) -> None:
        raise error

    module = ModuleType("pynvml")
    memory = SimpleNamespace(total=24_000_000_000, free=23_000_000_000)
    errors = {"DriverNotLoaded": NoDriverError, "LibraryNotFound": NoLibraryError}
    vars(module).update({f"NVMLError_{name}": error for name, error in errors.items()})
    answers: dict[str, Any] = {
        **{"Init": None, "SystemGetCudaDriverVersion_v2": 13020},
        **{"SystemGetDriverVersion": "580.82.07", "DeviceGetCount": 1},
        **{"DeviceGetHandleByIndex": 0, "DeviceGetMemoryInfo": memory},
        **{"DeviceGetCudaComputeCapability": (7, 5), "DeviceGetName": "Tesla T4"},
        **{"DeviceGetComputeMode": 3},
    }
    for name, answer in answers.items():
        setattr(module, f"nvml{name}", lambda *_, answer=answer: answer)
    vars(module)["NVMLError"] = NVMLError

    for name, error in fails.items():
        setattr(module, name, lambda *_, error=error: fail(error))
    return module


def test_gpus_are_read_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    here = this_machine()
    (gpu,) = here.gpus
    assert (gpu.id, gpu.name, gpu.bfloat16, gpu.mode) == ("0", "Tesla T4", False, "exclusive")
    assert (gpu.total_bytes, gpu.free_bytes) == (24_000_000_000, 23_000_000_000)
    assert (here.driver, here.driver_cuda) == ("580.82.07", "13.2")
    assert here.summary.endswith("1 x Tesla T4")


@every_row("error", NoDriverError(), NoLibraryError())
def test_missing_driver_means_no_gpu(error, tmp_path, monkeypatch):
    monkeypatch.setattr(machine_module, "_DEVICES", tmp_path)
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlInit=error))
    here = this_machine()
    assert (here.gpus, here.nvml_error, here.cuda_problem) == ((), None, None)


@pytest.mark.parametrize("asked", ["nvmlInit", "nvmlDeviceGetMemoryInfo"])
def test_failing_gpus_are_reported(asked, monkeypatch, capsys):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    failing = nvml(**{asked: NVMLError("GPU is lost")})
    monkeypatch.setitem(sys.modules, "pynvml", failing)
    here = this_machine()
    assert here.usable_gpus == ()
    assert "NVML cannot query the GPUs (GPU is lost)" in str(here.cuda_problem)
    assert examine(load("default"), [here], lambda _: None) == 1
    printed = capsys.readouterr().out
    assert "no GPU" not in printed
    assert "error    GPUs cannot be used: NVML cannot query the GPUs (GPU is lost)" in printed
    embedded = load("default", {"actors.engine": "embedded"})
    assert examine(embedded, [here], lambda _: None) == 0
    assert "note     GPUs are not used: NVML cannot" in capsys.readouterr().out


@every_row("chosen", None, "")
def test_gpu_without_nvml_is_reported(chosen, tmp_path, monkeypatch):
    """Without nvidia-ml-py, an existing GPU is a problem unless the user hides all GPUs."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if chosen is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", chosen)
    monkeypatch.setattr(machine_module, "_DEVICES", tmp_path)
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    here = this_machine()
    assert (here.nvml_error is None) == (chosen == "")
    if chosen is None:
        assert "nvidia0 exists, but the driver or nvidia-ml-py is missing" in str(here.cuda_problem)


def test_unusable_gpus_have_a_remedy() -> None:
    assert machine(cards=2).cuda_problem is None
    assert len(machine(cards=2).usable_gpus) == 2
    built = machine(cards=2, torch_cuda=None)
    assert "without CUDA" in str(built.cuda_problem)
    old = machine(cards=2, driver="535.1", driver_cuda="12.2")
    assert "install a newer driver" in str(old.cuda_problem)
    assert built.usable_gpus == old.usable_gpus == ()
    assert machine(torch_cuda=None).cuda_problem is None
