"""The set-up scripts say what went wrong and how to go on."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
NEEDED = ("run.sh", "test.sh", "pyproject.toml", "constraints.txt", "scripts")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What the scripts need of a clone, without a virtual environment."""
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


def start(clone: Path, script: str, python: str) -> "subprocess.CompletedProcess[str]":
    environment = {"PATH": "/usr/bin:/bin", "PYTHON": python}
    command = ["bash", str(clone / script)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/")


@pytest.mark.parametrize("script", ["run.sh", "test.sh", "scripts/vllm_cpu.sh"])
def test_an_old_python_is_refused_in_one_line(clone: Path, script: str) -> None:
    python = fake_python(clone, '[ "$1" = -V ] && echo Python 3.9.2; exit 1')
    done = start(clone, script, python)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    for words in ("Python 3.9.2", "Python 3.11 or newer is needed", "set PYTHON to one"):
        assert words in done.stderr


def test_a_step_that_fails_says_which_and_how_to_go_on(clone: Path) -> None:
    python = fake_python(clone, '[ "$2" = venv ] && exit 1; exit 0')
    done = start(clone, "run.sh", python)
    assert done.returncode == 1
    assert "setup failed at: make .venv" in done.stderr
    assert "to go on: " in done.stderr
    assert "python3-venv" in done.stderr


def test_a_second_start_installs_nothing(clone: Path) -> None:
    """A stamp stands for the packages; it is void when what was asked for changes."""
    binary = clone / ".venv/bin"
    binary.mkdir(parents=True)
    installs = clone / "installs"
    fake_python(binary, f'echo "$@" >> "{installs}"')
    (binary / "unstable").write_text('#!/bin/sh\necho "started $@"\n')
    (binary / "unstable").chmod(0o755)
    first = start(clone, "run.sh", "python3")
    assert first.stdout == "started train\n", first.stderr
    count = len(installs.read_text().splitlines())
    assert count > 0
    second = start(clone, "run.sh", "python3")
    assert second.stdout == "started train\n"
    assert len(installs.read_text().splitlines()) == count
    (clone / "constraints.txt").write_text("torch==0\n")
    start(clone, "run.sh", "python3")
    assert len(installs.read_text().splitlines()) > count


def test_two_first_starts_install_once(clone: Path) -> None:
    binary = clone / ".venv/bin"
    binary.mkdir(parents=True)
    installs = clone / "installs"
    fake_python(binary, f'sleep 0.2; echo "$@" >> "{installs}"')
    (binary / "unstable").write_text('#!/bin/sh\necho "started $@"\n')
    (binary / "unstable").chmod(0o755)
    command = ["bash", str(clone / "run.sh")]
    both = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    ended = [process.communicate(timeout=60) for process in both]
    assert [out for out, _ in ended] == ["started train\n"] * 2
    assert sum("another start installs" in err for _, err in ended) == 1
    lines = installs.read_text().splitlines()
    assert len(lines) == len(set(lines)) > 0


def test_a_folder_that_may_not_be_written_to_is_one_line(clone: Path) -> None:
    (clone / ".install.lock").mkdir()  # what root, too, may not write to
    done = start(clone, "run.sh", fake_python(clone, "exit 0"))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "may not be written to" in done.stderr and "copy it to a folder" in done.stderr
