"""The command line in processes of its own, and a user's folder."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.helpers.models import heed_interrupts
from unstable.records.reading import read_rows

SMALL = """
model: {{name: {model}, dtype: float32, init: fresh, adapter: {{rank: 4}}}}
sampling: {{max_tokens: 4}}
actors: {{num: 1, games_in_flight: 8}}
learner: {{batch_size: 16, micro_batch_size: 8}}
eval: {{every: 2, games: 2}}
loop: {{steps: 2, mode: sync}}
"""


started: list["subprocess.Popen[str]"] = []


def command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-c", "from unstable.cli import main; main()", *arguments]


def unstable(folder: Path, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(arguments),
        cwd=folder,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=240,
    )


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def no_developers_lines(text: str) -> bool:
    words = ("Traceback", "Warning", "(raylet)", "ray.io", "ERROR", "INFO", "DEBUG", ".py:")
    return not any(word in text for word in words)


def start(project: Path, *arguments: str, config: bool = True) -> "subprocess.Popen[str]":
    """A long run in the background, once an update is on file that was not there before."""
    begun = ["--config", "small.yaml", "--run_dir", "run"] if config else []
    metrics = project / "run/metrics.jsonl"
    before = len(read_rows(metrics)) if metrics.is_file() else 1
    process = subprocess.Popen(
        command(["train", *begun, *arguments]),
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,
    )
    started.append(process)
    deadline = time.monotonic() + 120
    while not (metrics.is_file() and len(read_rows(metrics)) > before):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return process


def children(process: "subprocess.Popen[str]", name: str = "") -> list[psutil.Process]:
    found = psutil.Process(process.pid).children(recursive=True)
    return [child for child in found if name in " ".join(child.cmdline())]
