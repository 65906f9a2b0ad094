"""The wheel works outside a clone: it contains all files that the package reads."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from unstable.config import DISTRIBUTION

ROOT = Path(__file__).parent.parent.parent
PLAY = """
import unstable, sys
from unstable.cli import run
assert unstable.__file__.startswith(sys.argv[1]), unstable.__file__
run(["--version"])
run(["doctor", "--config", "tiny"])
run(["tournament", "random", "expert", "--config", "tiny_nim", "--deals", "1", "--run_dir", "t"])
from unstable.config import load
from unstable.config.plugins import registered
assert "pettingzoo" in registered("environments") and "PigDice" in registered("rules")
from unstable.models.base import load_model
load_model(load("tiny").model)
"""


@pytest.mark.slow
def test_wheel_contains_configs_shipped_model_and_games(tmp_path: Path) -> None:
    source, installed = tmp_path / "source", tmp_path / "installed"
    shutil.copytree(ROOT / "unstable", source / "unstable")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    build = ["wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(tmp_path), str(source)]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = tmp_path.glob(f"{DISTRIBUTION.replace('-', '_')}-*.whl")
    subprocess.run([*pip, "install", "-q", "--no-deps", "--target", installed, wheel], check=True)
    environment = os.environ | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", PLAY, str(installed)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("unstable ") and "t/report.html" in done.stdout
