"""The doctor: the machine, the plan, and an exit code, without loading a model."""

import shutil
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.helpers.cli import ran
from tests.helpers.machines import QWEN, VERSIONS, machine
from tests.helpers.mistakes import line_of
from tests.helpers.models import hollow_files
from unstable.cli import run
from unstable.commands.doctor import examine
from unstable.commands.prepare import check
from unstable.config import RunConfig, load
from unstable.models import base
from unstable.planning.machine import Machine
from unstable.records.environment import asked_for


@pytest.fixture
def qwen(tmp_path: Path) -> RunConfig:
    """The 24 GB config of a model with a config and no weights that could be loaded."""
    folder = tmp_path / "qwen3-1.7b"
    shutil.copytree(QWEN, folder)
    hollow_files(folder)
    return load("qwen3_24gb", {"model.name": str(folder), "loop.steps": 3, "learner.num": 1})


@pytest.mark.parametrize(
    "here, words",
    [
        (machine(1), ["1 on GPU 0, vllm engine", "gradient_checkpointing is on"]),
        (
            machine(4),
            ["GPU 3: NVIDIA L4, 24.0 GB", "3 on GPU 0, 1, 2, vllm", "1 on GPU 3", "at once"],
        ),
        (machine(8, 80.0), ["7 on GPU 0, 1, 2, 3, 4, 5, 6", "1 on GPU 7", "driver 580.82.07"]),
    ],
)
def test_doctor_prints_the_plan(
    here: Machine, words: list[str], qwen: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examine(qwen, [here], check) == 0
    printed = capsys.readouterr().out
    for word in [*words, "vllm 0.32.0", "weights 3.44", "would make 3 updates of 384 turns"]:
        assert word in printed
    assert "error" not in printed


def test_machine_without_a_gpu_runs_the_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert examine(load("default"), [machine()], check) == 0
    printed = capsys.readouterr().out
    assert "no GPU" in printed
    assert "on the CPU, embedded engine" in printed


@pytest.mark.parametrize(
    "here, words",
    [
        (machine(1, 8.0), ["error", "GB", "use a smaller model"]),
        (machine(2, packages=VERSIONS | {"vllm": "0.11.0"}), ["vllm 0.11.0", "pip install 'vllm<"]),
        (machine(packages={}), ["torch is not installed", "pip install 'torch"]),
    ],
)
def test_problems_are_printed_with_remedy_and_exit_code_1(
    here: Machine, words: list[str], qwen: RunConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert examine(qwen, [here], check) == 1
    printed = capsys.readouterr().out
    for word in words:
        assert word in printed
    assert "would make" not in printed


def test_config_mistake_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = load("default", {"games.0.env": "TicTacTo-v0"})
    line_of(check, wrong)
    assert examine(wrong, [machine()], check) == 1
    assert "error    games.0.env = 'TicTacTo-v0'" in capsys.readouterr().out


def test_unavailable_model_is_planned_by_its_known_sizes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a network, `doctor` prints the plan and one error: the model is not here."""
    monkeypatch.setattr(base, "_hub_silence", lambda: "no route to host")
    assert examine(load("qwen3_24gb"), [machine(4)], check) == 1
    printed = capsys.readouterr().out
    assert "vllm engine, bfloat16" in printed and "weights 3.44" in printed
    assert printed.count("error    model.name = 'Qwen/Qwen3-1.7B'") == 1
    assert "would make" not in printed


LACKS: dict[str, dict[str, Any]] = {
    "vLLM is not installed; run: pip install": {
        "packages": {name: version for name, version in VERSIONS.items() if name != "vllm"}
    },
    "no C compiler found, which vLLM needs to start; run: apt install gcc": {"compiler": False},
    "no Python.h found, which vLLM needs to start": {"headers": False},
    "GPUs cannot be used: driver 535.1 supports CUDA 12.2, but": {
        "driver": "535.1",
        "driver_cuda": "12.2",
    },
    "GPUs cannot be used: torch 2.13.0 is a build without CUDA": {"torch_cuda": None},
}


@pytest.mark.parametrize("line", LACKS)
def test_unusable_gpu_is_an_error(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A fault that could be fixed is an error, unless the config sets the embedded engine."""
    here = machine(1, **LACKS[line])
    assert examine(load("default"), [here], lambda _: None) == 1
    printed = capsys.readouterr().out
    assert f"error    {line}" in printed and "actors.engine to embedded" in printed
    embedded = load("default", {"actors.engine": "embedded"})
    assert examine(embedded, [here], lambda _: None) == 0
    assert "on the CPU, embedded engine" in capsys.readouterr().out


def test_small_shm_is_a_note_exclusive_gpu_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    small = machine(1, shared_bytes=64_000_000, disk_bytes=1_000_000_000)
    assert examine(load("default"), [small], lambda _: None) == 0
    printed = capsys.readouterr().out
    assert "note     /dev/shm has 64 MB" in printed and "1.0 GB of disk are free" in printed
    gpus = tuple(replace(gpu, mode="exclusive") for gpu in machine(2).gpus)
    assert examine(load("default"), [machine(2, gpus=gpus)], lambda _: None) == 0
    assert examine(load("default"), [machine(1, gpus=gpus[:1])], lambda _: None) == 1
    assert "GPU 0: compute mode is exclusive" in capsys.readouterr().out
    gpus = tuple(replace(gpu, mode="prohibited") for gpu in gpus)
    assert examine(load("default"), [machine(2, gpus=gpus)], lambda _: None) == 1
    assert "GPU 0's compute mode is prohibited" in capsys.readouterr().out


def test_gpu_without_bfloat16_is_noted(qwen: RunConfig, capsys: pytest.CaptureFixture[str]) -> None:
    new = machine(1, 80.0)
    old = replace(new, gpus=tuple(replace(gpu, bfloat16=False) for gpu in new.gpus))
    assert examine(qwen, [old], check) == 0
    printed = capsys.readouterr().out
    assert "on the CPU, embedded engine, float32" in printed
    assert "note     actors play on the CPU: vLLM runs LoRA on GPUs only in bfloat16" in printed
    actors = qwen.actors.model_copy(update={"engine": "vllm"})
    assert examine(qwen.model_copy(update={"actors": actors}), [old], check) == 1
    assert "error    actors.engine = 'vllm': vLLM runs LoRA on GPUs" in capsys.readouterr().out


def test_package_names_are_normalized_like_pip(capsys: pytest.CaptureFixture[str]) -> None:
    requires = ["Some.Thing>=3", "other_thing>=1"]
    packages = {"some-thing": "2.0", "other-thing": "1.0"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unstable.records.environment.requires", lambda _: requires)
        assert examine(load("default"), [machine(packages=packages)], lambda _: None) == 1
    errors = [line for line in capsys.readouterr().out.splitlines() if line.startswith("error")]
    assert errors == ["error    Some.Thing 2.0 is unsupported; run: pip install 'Some.Thing>=3'"]


def test_doctor_takes_options_of_train_and_loads_no_model(tiny_folder: Path) -> None:
    arguments = ["doctor", "--model", str(tiny_folder), "--num_actors", "3", "--steps", "5"]
    code = (
        "import sys; from unstable.cli import run; code = run(sys.argv[1:]); "
        "print('heavy', {'ray', 'vllm', 'peft'} & set(sys.modules)); sys.exit(code)"
    )
    done = ran([sys.executable, "-c", code, *arguments])
    assert done.returncode == 0, done.stderr + done.stdout
    assert "actors   3 on " in done.stdout
    assert "would make 5 updates" in done.stdout
    assert "heavy set()" in done.stdout


def test_help_lists_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--help", "learner"]) == 0
    assert "--learner.micro_batch_tokens" in capsys.readouterr().out


def test_uninstalled_package_has_no_requirements(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> NoReturn:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("unstable.records.environment.requires", missing)
    assert asked_for() == []
