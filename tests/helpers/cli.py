"""The command line in this process and in child processes, and a user's folder."""

import contextlib
import io
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any
from unittest.mock import patch

import psutil
import pytest

from tests.helpers.locally import locally
from tests.helpers.models import heed_interrupts
from tests.helpers.records import lines
from unstable.cli import main
from unstable.records import logs
from unstable.records.reading import read_rows

SMALL = """
model: {{name: {model}, dtype: float32, init: fresh, adapter: {{rank: 4}}}}
sampling: {{max_tokens: 4}}
actors: {{num: 1, games_in_flight: 8}}
learner: {{batch_size: 16, micro_batch_size: 8}}
eval: {{every: 2, games: 2}}
loop: {{steps: 2, mode: sync}}
"""

PATIENCE_S = 300.0
"""Timeout of all waits; ends hanging tests, with room for slow and busy machines."""

Done = CompletedProcess[str]
started: list["subprocess.Popen[str]"] = []
rows = lines


def command(arguments: Sequence[str]) -> list[str]:
    return [sys.executable, "-c", "from unstable.cli import main; main()", *arguments]


def ran(words: Sequence[Any], folder: Path | str | None = None, **variables: str) -> Done:
    """Finished process with its output."""
    environment = os.environ | variables
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 2 * PATIENCE_S}
    return subprocess.run(words, cwd=folder, env=environment, **options)


def unstable(folder: Path, *arguments: str, **variables: str) -> Done:
    return ran(command(arguments), folder, **variables)


def in_process(folder: Path, *arguments: str, **variables: str) -> Done:
    """Run `unstable` in this process, for error lines and commands that only print."""
    output, errors = io.StringIO(), io.StringIO()
    with (
        _restored(folder),
        patch.dict(os.environ, variables),
        patch.object(sys, "argv", ["unstable", *arguments]),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
        pytest.raises(SystemExit) as ended,
    ):
        main()
    code = ended.value.code
    assert isinstance(code, int)
    return CompletedProcess(arguments, code, output.getvalue(), errors.getvalue())


def run_locally(folder: Path, *arguments: str, code: int = 0) -> Done:
    """Run `unstable` in this process without Ray; it must end with this exit code."""
    with locally():
        done = in_process(folder, *arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return done


@contextlib.contextmanager
def _restored(folder: Path) -> Iterator[None]:
    """Undo what `main` changes in its process, and forget the modules of the user's folder."""
    loggers = [*map(logging.getLogger, ("", "unstable", *logs.NOISE))]
    before = [(logger, logger.level, [*logger.handlers]) for logger in loggers]
    try:
        with (
            patch.object(sys, "path", [*sys.path]),
            patch.object(sys, "excepthook", sys.excepthook),
            patch.object(logs, "_takes_over", False),
        ):
            yield
    finally:
        for logger, level, handlers in before:
            logger.setLevel(level)
            logger.handlers[:] = handlers
        for name, module in [*sys.modules.items()]:
            file = getattr(module, "__file__", None)
            if file is not None and Path(file).is_relative_to(folder.resolve()):
                del sys.modules[name]


def no_developers_lines(text: str) -> bool:
    words = ("Traceback", "Warning", "(raylet)", "ray.io", "ERROR", "INFO", "DEBUG", ".py:")
    return not any(word in text for word in words)


def start(project: Path, *arguments: str, config: bool = True) -> "subprocess.Popen[str]":
    """Start a long run in the background; returns once it records a new update."""
    begun = ["--config", "small.yaml", "--run_dir", "run"] if config else []
    metrics = project / "run/metrics.jsonl"
    before = max(1, written(metrics))
    process = background(project, ["train", *begun, *arguments])
    wait_for(lambda: written(metrics) > before, process)
    return process


def background(project: Path, arguments: Sequence[str]) -> "subprocess.Popen[str]":
    """Start a command that ends with its test, in a process group with its own Ctrl-C."""
    process = subprocess.Popen(
        command(arguments),
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=heed_interrupts,
        pipesize=2**20,  # room for output that is read late
    )
    started.append(process)
    return process


def written(metrics: Path) -> int:
    """Count the versions with a row in `metrics`, which a run may be writing to."""
    return len(read_rows(metrics))


def wait_for(is_there: Callable[[], bool], process: "subprocess.Popen[str]") -> None:
    """Wait until `is_there` is true; fail with the process's output if it ends before."""
    deadline = time.monotonic() + PATIENCE_S
    while not is_there():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def goes_on(project: Path, process: "subprocess.Popen[str]", updates: int) -> None:
    """Wait until the run records `updates` more updates."""
    metrics = project / "run/metrics.jsonl"
    before = written(metrics)
    wait_for(lambda: written(metrics) >= before + updates, process)


def ended(process: "subprocess.Popen[str]", code: int, by: signal.Signals | None = None) -> str:
    """Return a run's output once it exits with `code`, in order and with no child process left.

    `by` is a signal that it gets first: Ctrl-C goes to its whole group, as a terminal sends it.
    """
    family = children(process)
    if by == signal.SIGINT:
        os.killpg(process.pid, by)
    elif by is not None:
        process.send_signal(by)
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == code, output
    assert no_developers_lines(output)
    psutil.wait_procs(family, timeout=60)
    assert not [child for child in family if child.is_running()]
    return output


def children(process: "subprocess.Popen[str]", name: str = "") -> list[psutil.Process]:
    found = psutil.Process(process.pid).children(recursive=True)
    return [child for child in found if name in command_line(child)]


def command_line(process: psutil.Process) -> str:
    """Return a process's command line, empty if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return " ".join(process.cmdline())
    return ""
