"""Fixtures: a tiny model on disk, which every part takes by `model.name`."""

import gc
import os
import signal
from pathlib import Path

# Before torch reads it: threads that spin while they wait lose far more to a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if "PYTEST_XDIST_WORKER" in os.environ:  # as many workers as cores share them
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

# How long an example takes says more of what else the machine does than of the code.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def pytest_configure(config: pytest.Config) -> None:
    """GPUs are hidden, from processes too, but with `-m gpu`: the other tests are a processor's.

    Ctrl-C is heeded, also where pytest is a script's background job, which ignores it.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "gpu" not in config.getoption("-m"):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(1)  # the tests' models are so small that more threads are slower
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
        if item.get_closest_marker("gpu"):  # keywords hold the names of folders as well
            reason = "no GPU on this machine, or -m gpu was not given"
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Exempt the imported packages from garbage collection, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama of two layers with its tokenizer, in Hugging Face form."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tiny_model().save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The test's own folder, in which it runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def begin(tiny_folder: Path, tmp_path: Path) -> "Begin":
    """The context of a run in the folder `run`, by what its config sets."""
    from tests.helpers.loop import make_context  # which most tests do without

    return partial(make_context, tiny_folder, tmp_path / "run")


@pytest.fixture
def project(tiny_folder: Path, tmp_path: Path) -> Iterator[Path]:
    """A user's folder with a config of their own in it. What a test has begun ends with it."""
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
