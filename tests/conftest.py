"""Fixtures, such as a tiny model on disk for `model.name`."""

import gc
import os
import signal
from pathlib import Path

# Set before torch reads it: spinning threads are slow on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:  # one worker per core
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import hypothesis
import pytest
import torch

from tests.helpers import durations, tables
from tests.helpers.cli import SMALL, started
from tests.helpers.endpoint import Server
from tests.helpers.models import tiny_model, tiny_tokenizer

if TYPE_CHECKING:
    from tests.helpers.loop import Begin

# No deadline: the time of an example depends on the machine's load.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs, also from child processes, unless `-m gpu` is given: other tests use the CPU.

    Restore Ctrl-C, which a script's background job ignores.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "gpu" not in config.getoption("-m"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)  # more threads are slower for tiny models
    durations.register(config)


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unknown = tables.take_turns(items)
    if unknown and not any("::" in each for each in config.args):
        raise pytest.UsageError(f"tests/data/turns.toml names unknown rows: {sorted(unknown)}")
    tables.deselect(config, items)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):  # keywords also contain folder names
            reason = "no GPU available, or -m gpu was not given"
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt the imported packages from garbage collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a random Llama of two layers with its tokenizer in Hugging Face format."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run the test in its own folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def begin(tiny_folder: Path, tmp_path: Path) -> "Begin":
    """Return a function that makes the context of a run in the folder `run`."""
    from tests.helpers.loop import make_context  # slow import that most tests do not need

    return partial(make_context, tiny_folder, tmp_path / "run")


@pytest.fixture
def project(tiny_folder: Path, tmp_path: Path) -> Iterator[Path]:
    """Make a user's folder with a config; processes that the test started end with it."""
    (tmp_path / "small.yaml").write_text(SMALL.format(model=tiny_folder))
    yield tmp_path
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()
    started.clear()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("A_KEY", "any")
    server = Server()
    yield server
    server.close()
