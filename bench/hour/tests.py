"""The steps that run the tests of a card, a file each."""

import re
import sys
from pathlib import Path

from bench.hour.job import Job, Skip

_ROOT = Path(__file__).parents[2]


def packing(job: Job) -> None:
    """Scores and gradients are a processor's."""
    _run(job, "learners/test_packing.py")


def memory(job: Job) -> None:
    """A full card is survived."""
    _run(job, "learners/test_out_of_memory.py")


def scores(job: Job) -> None:
    """Engine and learner agree in bfloat16."""
    _run(job, "engines/test_scores_bfloat16.py")


def life(job: Job) -> None:
    """A run's whole small life."""
    _run(job, "engines/test_life.py")


def _run(job: Job, file: str) -> None:
    if not job.card:
        raise Skip("no card")
    pytest = [sys.executable, "-m", "pytest", "-m", "gpu", "-p", "no:cacheprovider"]
    done = job.run(*pytest, str(_ROOT / "tests" / file), "-rs", "--durations=0")
    counted = re.findall(r"(\d+) (passed|failed|error|skipped)", done.stdout)
    job.note(f"tests/{file}", ", ".join(" ".join(each) for each in counted), "", "passed")
    if done.returncode:
        raise RuntimeError(f"pytest ended with {done.returncode}")
