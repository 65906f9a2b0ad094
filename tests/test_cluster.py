"""Ray on this machine, wherever Python lies and whatever the environment says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import logging, os, ray, signal, sys
from unstable.runtime.cluster import cluster, process_options

class Process:
    def python(self):
        return sys.executable

before = signal.getsignal(signal.SIGTERM), logging.getLogger("ray").handlers[:]
with cluster(1):
    assert signal.getsignal(signal.SIGTERM) == before[0]
    process = ray.remote(**process_options(threads=1))(Process).remote()
    print(ray.get(process.python.remote()))
assert logging.getLogger("ray").handlers == before[1]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("folder", "variables"), [("a b", {}), ("plain", {"RAY_ADDRESS": "192.0.2.1:6379"})]
)
def test_processes_start_out_of_any_path_beside_any_cluster(
    folder: str, variables: dict[str, str], tmp_path: Path
) -> None:
    place = tmp_path / folder
    place.mkdir()
    (place / "venv").symlink_to(sys.prefix)
    python = place / "venv/bin/python"
    done = subprocess.run(
        [str(python), "-c", SCRIPT],
        env=os.environ | variables,
        cwd=place,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[-2] == str(python)
