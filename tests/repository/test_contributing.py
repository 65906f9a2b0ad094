"""CONTRIBUTING.md's examples, applied unchanged to a copy of the package, and run."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
FILES = re.findall(r"^```python\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
DIFFS = re.findall(r"^```diff\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
RUN = """
import unstable
from tests.helpers.locally import locally

config = unstable.load("default", {
    "model.name": "MODEL", "model.init": "fresh", "model.dtype": "float32",
    "model.adapter.rank": 4, "sampling.max_tokens": 6,
    "games": [{"env": "unstable.games.catalog.race:Race", "name": "Race"}],
    "opponents.fixed": [{"kind": "first"}], "opponents.draw": {"self": 0.5, "fixed": 0.5},
    "eval.opponents": ["first", "expert"], "eval.games": 2,
    "actors.engine": "serial", "actors.num": 1,
    "learner.algorithm.name": "signed", "groups.size": 2,
    "learner.batch_size": 16, "learner.micro_batch_size": 8,
    "buffer.rewards": [{"term": "outcome"}, {"term": "haste", "weight": 0.1}],
    "loop.steps": 1, "loop.mode": "sync",
    "tracking.run_dir": "run", "tracking.dashboard": "off",
})
with locally():
    unstable.train(config)
print(unstable.__file__)
"""


def patched(text: str, hunk: str) -> str:
    """Apply a hunk of a diff to a text that has its context and removed lines once."""
    lines = hunk.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] in " -")
    after = "".join(line[1:] for line in lines if line[0] in " +")
    assert text.count(before) == 1, before
    return text.replace(before, after)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy the package and its tests, with all of the page's examples applied."""
    skipped = shutil.ignore_patterns("__pycache__")
    for folder in ("unstable", "tests", "bench"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=skipped)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for name, text in FILES:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        assert not path.exists()
        path.write_text(text, encoding="utf-8")
    for diff in DIFFS:
        for name, hunks in re.findall(r"^--- (\S+)\n(.*?)(?=^---|\Z)", diff, re.M | re.S):
            path = tmp_path / name
            text = path.read_text(encoding="utf-8")
            for hunk in hunks.split("@@\n")[1:]:
                text = patched(text, hunk)
            path.write_text(text, encoding="utf-8")
    return tmp_path


def run(checkout: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(checkout)}
    environment.pop("UNSTABLE_DURATIONS", None)  # not for nested tests
    done = subprocess.run(
        [sys.executable, *command], cwd=checkout, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_page_has_an_example_of_each_extension() -> None:
    added = {name.partition("/")[2].rpartition("/")[0] for name, _ in FILES}
    assert added == {
        "learners/algorithms",
        "games/catalog",
        "collectors/players",
        "tracking/sinks",
        "engines/serial",
    }


@pytest.mark.slow
def test_documented_extensions_pass_checks_and_run(checkout: Path, tiny_folder: Path) -> None:
    run(checkout, "-m", "pytest", "-q", "tests/repository/test_rooms.py")
    run(checkout, "-m", "ruff", "check", "unstable")
    out = run(checkout, "-c", RUN.replace("MODEL", str(tiny_folder)))
    assert str(checkout / "unstable/__init__.py") in out
    for opponent in ("first", "expert"):
        assert re.search(rf"Race against {opponent}: score", out)
    samples = (checkout / "run/train/000001.jsonl").read_text().splitlines()
    assert all(0 < json.loads(line)["rewards"]["haste"]["raw"] <= 1 for line in samples)
    assert (checkout / "run/losses.txt").read_text().startswith("1 ")
