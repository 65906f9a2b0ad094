"""Setup scripts report each problem with its remedy."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.helpers.cli import Done

ROOT = Path(__file__).parent.parent.parent
NEEDED = ("run.sh", "test.sh", "pyproject.toml", "constraints.txt", "scripts")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Copy the part of a clone that the scripts need, without a virtual environment."""
    folder = tmp_path / "a clone"
    folder.mkdir()
    for name in NEEDED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    return folder


def fake_python(folder: Path, script: str) -> str:
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def start(clone: Path, script: str, python: str) -> Done:
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": python}
    command = ["bash", str(clone / script)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/")


@pytest.mark.parametrize("script", ["run.sh", "test.sh", "scripts/vllm_cpu.sh"])
def test_old_python_is_rejected_in_one_line(clone: Path, script: str) -> None:
    python = fake_python(clone, '[ "$1" = -V ] && echo Python 3.9.2; exit 1')
    done = start(clone, script, python)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    for words in ("Python 3.9.2", "Python 3.11 or newer is needed", "set PYTHON to one"):
        assert words in done.stderr


def test_failed_step_prints_its_name_and_remedy(clone: Path) -> None:
    python = fake_python(clone, '[ "$2" = venv ] && exit 1; exit 0')
    done = start(clone, "run.sh", python)
    assert done.returncode == 1
    assert "setup failed at: create .venv" in done.stderr
    assert "remedy: " in done.stderr
    assert "python3-venv" in done.stderr


def installed(clone: Path, installer: str) -> Path:
    """Make a virtual environment with a fake python; returns the file with its calls."""
    binary, calls = clone / ".venv/bin", clone / "installs"
    binary.mkdir(parents=True)
    fake_python(binary, f'{installer}echo "$@" >> "{calls}"')
    (binary / "unstable").write_text('#!/bin/sh\necho "started $@"\n')
    (binary / "unstable").chmod(0o755)
    return calls


def test_second_start_installs_nothing(clone: Path) -> None:
    """A second start installs nothing, until a change of the requirements voids the stamp."""
    installs = installed(clone, "")
    first = start(clone, "run.sh", "python3")
    assert first.stdout == "started train\n", first.stderr
    count = len(installs.read_text().splitlines())
    assert count > 0
    assert start(clone, "run.sh", "python3").stdout == "started train\n"
    assert len(installs.read_text().splitlines()) == count
    (clone / "constraints.txt").write_text("torch==0\n")
    start(clone, "run.sh", "python3")
    assert len(installs.read_text().splitlines()) > count


def test_concurrent_first_starts_install_once(clone: Path) -> None:
    installs = installed(clone, "sleep 0.2; ")
    command = ["bash", str(clone / "run.sh")]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ended = [process.communicate(timeout=300) for process in both]
    assert [out for out, _ in ended] == ["started train\n"] * 2
    assert sum("another process installs" in err for _, err in ended) == 1
    lines = installs.read_text().splitlines()
    assert len(lines) == len(set(lines)) > 0


def test_unwritable_folder_is_rejected_in_one_line(clone: Path) -> None:
    (clone / ".install.lock").mkdir()  # not writable even for root
    done = start(clone, "run.sh", fake_python(clone, "exit 0"))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "is not writable" in done.stderr and "copy it to a folder" in done.stderr


TOOLS = ("bash", "cat", "dirname", "basename", "sed", "awk", "cksum", "sleep", "flock")
SMI = """case "$*" in
  -L) echo "{listed}" ;;
  *driver_version*) echo 580.82.07 ;;
  *compute_mode*) echo {mode} ;;
  "") echo "| NVIDIA-SMI 580.82   Driver Version: 580.82   CUDA Version: {cuda}     |" ;;
esac"""
CARD = "GPU 0: NVIDIA L4 (UUID: GPU-1)"


def tools(folder: Path, smi: str | None = None, df_mb: int = 100_000, gcc: bool = True) -> str:
    """Make a PATH with the scripts' tools, and fakes that describe the machine."""
    folder.mkdir()
    for name in TOOLS:
        os.symlink(str(shutil.which(name)), folder / name)
    sizes = f"echo head; echo fs {df_mb} 0 {df_mb} 0% /"
    fakes = {"df": sizes, "gcc": "exit 0" if gcc else None, "nvidia-smi": smi}
    for name, script in fakes.items():
        if script is not None:
            (folder / name).write_text(f"#!/bin/bash\n{script}\n")
            (folder / name).chmod(0o755)
    return str(folder)


def checked(path: str, python: str = sys.executable, **variables: str) -> Done:
    """Run the install script's check of the machine, which prints the flavour."""
    nowhere = str(Path(path) / "nowhere")
    script = (
        f'set -euo pipefail; source "{ROOT}/scripts/machine.sh"; found=$(flavour); '
        f'check_machine "{nowhere}" "$found" "{python}"; echo "$found"'
    )
    environment = {"PATH": path, "NVIDIA_NODES": nowhere, **variables}
    return subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, cwd="/"
    )


def test_usable_gpu_is_used(tmp_path: Path) -> None:
    smi = SMI.format(listed=CARD, mode="Default", cuda="13.0")
    done = checked(tools(tmp_path / "bin", smi))
    assert (done.returncode, done.stdout, done.stderr) == (0, "gpu\n", "")


@pytest.mark.parametrize("many", [1, 20_000])
def test_long_gpu_list_is_read_completely(many: int, tmp_path: Path) -> None:
    """Closing the pipe early would fail its writer, and hide every GPU."""
    smi = f'for i in $(echo {{1..{many}}}); do echo "{CARD}"; done'
    assert checked(tools(tmp_path / "bin", smi), "/bin/true").stdout == "gpu\n"


@pytest.mark.parametrize(
    "machine, words",
    [
        ({"cuda": "12.2"}, ["error: driver 580.82.07 supports CUDA 12 at most", "torch needs 13"]),
        ({"gcc": False}, ["error: no C compiler", "apt install gcc"]),
        ({"python": "/bin/false"}, ["error: no Python.h", "apt install python"]),
        ({"mode": "Prohibited"}, ["error: a GPU's compute mode is Prohibited"]),
        ({"df_mb": 9_000}, ["error: ", "has 9 GB of disk free", "need 14 GB; free some space"]),
        ({"listed": "Unable to determine the device handle", "node": True}, ["error: ", "nvidia0"]),
        ({"listed": None, "node": True}, ["error: ", "nvidia-smi is not found"]),
    ],
)
def test_problem_is_one_line(machine: dict[str, object], words: list[str], tmp_path: Path) -> None:
    known = {"listed": CARD, "mode": "Default", "cuda": "13.0"} | machine
    smi = None if known["listed"] is None else SMI.format(**known)
    path = tools(
        tmp_path / "bin", smi, int(str(known.get("df_mb", 100_000))), bool(known.get("gcc", True))
    )
    if known.get("node"):
        (tmp_path / "nvidia0").touch()
    python = str(known.get("python", sys.executable))
    done = checked(path, python, NVIDIA_NODES=str(tmp_path))
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    for word in words:
        assert word in done.stderr


@pytest.mark.parametrize(
    "smi, variables, said",
    [
        (None, {}, ""),
        (SMI.format(listed=CARD, mode="Default", cuda="12.2"), {"CUDA_VISIBLE_DEVICES": ""}, ""),
        ("echo No devices were found; exit 6", {}, "no GPU is used; nvidia-smi says: No devices"),
    ],
)
def test_cpu_packages_are_installed_without_a_gpu(
    smi: str | None, variables: dict[str, str], said: str, tmp_path: Path
) -> None:
    done = checked(tools(tmp_path / "bin", smi), **variables)
    assert (done.returncode, done.stdout) == (0, "cpu\n")
    assert said in done.stderr and bool(said) == bool(done.stderr)


def test_exclusive_gpu_and_small_shared_memory_are_notes(tmp_path: Path) -> None:
    smi = SMI.format(listed=CARD, mode="Exclusive_Process", cuda="13.0")
    path = tools(tmp_path / "bin", smi)
    (tmp_path / "bin/df").write_text(
        '#!/bin/bash\ncase "$*" in *shm) n=64 ;; *) n=90000 ;; esac; echo; echo fs $n 0 $n\n'
    )
    done = checked(path)
    assert (done.returncode, done.stdout) == (0, "gpu\n")
    mode, shared = done.stderr.splitlines()
    assert "compute mode is exclusive" in mode and "/dev/shm has 64 MB" in shared


PINS = {
    str(canonicalize_name(name)): version
    for file in ("constraints.txt", "scripts/constraints_gpu.txt")
    for name, _, version in (
        line.partition("==") for line in (ROOT / file).read_text().splitlines()
    )
}


def test_direct_dependencies_have_upper_bounds_above_their_pins() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"].values()
    for text in [*project["dependencies"], *(each for extra in optional for each in extra)]:
        needed = Requirement(text)
        assert any(each.operator == "<" for each in needed.specifier), text
        if (pin := PINS.get(canonicalize_name(needed.name))) is not None:
            assert needed.specifier.contains(pin), text
    assert Requirement("textarena>=0.7.4,<0.8") in map(Requirement, project["dependencies"])


def test_no_package_is_pinned_twice() -> None:
    lines = [
        canonicalize_name(line.partition("==")[0])
        for file in ("constraints.txt", "scripts/constraints_gpu.txt")
        for line in (ROOT / file).read_text().splitlines()
    ]
    assert len(lines) == len(set(lines))
    assert {"torch", "vllm", "triton", "nvidia-cublas", "flashinfer-python"} <= set(lines)


def test_outdated_pins_are_listed(tmp_path: Path) -> None:
    """Pip's answer is faked: one pin is old, two beyond their bounds, one package not pinned."""
    answer = {"rich": PINS["rich"], "torch": "99.1", "textarena": "0.8.0", "brand-new": "1.0"}
    newer = f"{Version(PINS['peft']).major}.99.0"
    report = {
        "install": [
            {"metadata": {"name": name, "version": version}}
            for name, version in (answer | {"peft": newer}).items()
        ]
    }
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="{tmp_path}" exec "{sys.executable}" "$@"\n', encoding="utf-8"
    )
    python.chmod(0o755)
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip/__init__.py").touch()
    (tmp_path / "pip/__main__.py").write_text(f"import json\nprint(json.dumps({report!r}))\n")
    done = subprocess.run(
        ["bash", str(ROOT / "scripts/outdated.sh")],
        env={"PATH": "/usr/bin:/bin", "PYTHON": str(python)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "brand-new 1.0 is not pinned",
        f"peft {PINS['peft']} is pinned, {newer} is the newest",
        f"textarena {PINS['textarena']} is pinned, 0.8.0 is the newest, beyond <0.8,>=0.7.4 of "
        "pyproject.toml",
        f"torch {PINS['torch']} is pinned, 99.1 is the newest, beyond <3,>=2.11 of pyproject.toml",
    ]
