"""The steps that run the GPU tests, one file per step."""

import re
import sys
from pathlib import Path

from bench.hour.job import Job, Skip

_ROOT = Path(__file__).parents[2]


def packing(job: Job) -> None:
    """Test that scores and gradients match the CPU's."""
    _run(job, "learners/test_packing.py")


def memory(job: Job) -> None:
    """Test that a run survives a full GPU."""
    _run(job, "learners/test_out_of_memory.py")


def scores(job: Job) -> None:
    """Test that engine and learner agree in bfloat16."""
    _run(job, "engines/test_scores_bfloat16.py")


def life(job: Job) -> None:
    """Test a whole small run."""
    _run(job, "engines/test_life.py")


def _run(job: Job, file: str) -> None:
    if not job.card:
        raise Skip("no GPU")
    pytest = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider"]
    done = job.run(*pytest, str(_ROOT / "tests" / file), "-rs", "--durations=0")
    counted = re.findall(r"(\d+) (passed|failed|error|skipped)", done.stdout)
    job.note(f"tests/{file}", ", ".join(" ".join(each) for each in counted), "", "passed")
    if done.returncode:
        raise RuntimeError(f"pytest exited with {done.returncode}")
