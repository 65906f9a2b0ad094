"""Ray on this machine, independent of Python's location and of environment variables."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.helpers.cli import ran
from unstable.config import parse
from unstable.planning.machine import LOOPBACK, Placement
from unstable.records.folder import RunFolder
from unstable.runtime import cluster
from unstable.runtime.learner_ranks import RemoteLearner
from unstable.types.processes import ProcessId, started

SCRIPT = """
import logging, os, ray, signal, sys
from unstable.planning.machine import LOOPBACK, Placement
from unstable.runtime.cluster import Process, cluster

class Teller:
    def tell(self):
        return sys.executable, os.nice(0), is_held()

def is_held():
    return signal.SIGHUP in signal.pthread_sigmask(signal.SIG_BLOCK, [])

before = signal.getsignal(signal.SIGTERM), logging.getLogger("ray").handlers[:]
with cluster(1):
    assert signal.getsignal(signal.SIGTERM) == before[0]
    process = Process(Teller, (), Placement(LOOPBACK), threads=1)
    print(*ray.get(process.actor.tell.remote()), sep="\\n")
assert logging.getLogger("ray").handlers == before[1]
assert not is_held()
"""


@pytest.mark.slow
def test_local_ray_ignores_ray_address_and_keeps_niceness(tmp_path: Path) -> None:
    """Processes start next to any cluster, inherit the run's niceness, and ignore hangups."""
    place = tmp_path / "a b"
    place.mkdir()
    (place / "venv").symlink_to(sys.prefix)
    python = place / "venv/bin/python"
    nice = os.nice(0) + 3
    done = ran(["nice", "-n", "3", str(python), "-c", SCRIPT], place, RAY_ADDRESS="192.0.2.1:6379")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-3:] == [str(python), str(nice), "True"]


class FakeRay:
    """Ray's request to exit, which a stopped process does not handle."""

    def __init__(self) -> None:
        self.killed: list[object] = []

    def remote(self, **_: object) -> Any:
        return lambda kind: SimpleNamespace(remote=kind)

    def kill(self, actor: object) -> None:
        self.killed.append(actor)


class Stopped:
    """A stopped process, whose id `change` turns into the id of another one."""

    def __init__(self, change: dict[str, Any]) -> None:
        self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.child.send_signal(signal.SIGSTOP)
        where = asyncio.Future[ProcessId]()
        own = ProcessId.own()._replace(pid=self.child.pid, started=started(self.child.pid) or 0)
        where.set_result(own._replace(**change))
        self.start = SimpleNamespace(remote=lambda: where)


@pytest.mark.parametrize("change", [{}, {"space": "elsewhere"}, {"started": 1}])
async def test_process_is_signaled_only_on_its_own_host(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeRay()
    monkeypatch.setattr(cluster, "ray", fake)
    process = cluster.Process(Stopped, (change,), Placement(LOOPBACK), threads=1)
    child = process.actor.child
    try:
        assert await process.start() == child.pid
        process.kill()
        assert fake.killed == [process.actor]
        if not change:
            assert child.wait(timeout=60) == -signal.SIGKILL
        else:
            assert child.poll() is None
        process.kill()  # the process has ended, and its id may be reused
    finally:
        child.kill()
        child.wait()


def test_learner_uses_expandable_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines must not: vLLM could not sleep. A setting in the environment has priority."""
    made: list[dict[str, Any]] = []

    class Recorder(FakeRay):
        def remote(self, **options: Any) -> Any:
            made.append(options["runtime_env"]["env_vars"])
            return super().remote(**options)

    monkeypatch.setattr(cluster, "ray", Recorder())
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    card, none = Placement(LOOPBACK, ("0",)), Placement(LOOPBACK)
    folder = RunFolder(tmp_path)
    RemoteLearner(parse({}), folder, [card, none], 2)
    cluster.Process(SimpleNamespace, (), card, threads=1)
    assert [each.get(names[0]) for each in made] == ["expandable_segments:True", None, None]
    monkeypatch.setenv(names[1], "max_split_size_mb:64")
    RemoteLearner(parse({}), folder, [card], 1)
    assert names[0] not in made[-1]


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, and an environment without settings of tokens."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_ray_gets_a_short_folder_if_tmpdir_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    for long in ("/tmp/" + 60 * "x", "/tmp/" + 120 * "x"):
        monkeypatch.setenv("RAY_TMPDIR", long)
        with cluster._private_names() as names:
            assert names["_temp_dir"] == "/tmp/ray"
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    with cluster._private_names() as names:
        assert "_temp_dir" not in names


def test_ray_token_is_readable_only_by_its_owner(home: Path) -> None:
    before = os.umask(0o022)
    try:
        cluster.keep_token()
    finally:
        os.umask(before)
    token = home / ".ray/auth_token"
    assert mode(token) == 0o600 and mode(token.parent) == 0o700
    assert [*token.parent.iterdir()] == [token]
    written = token.read_text()
    assert len(bytes.fromhex(written)) == 32
    token.chmod(0o644)  # permissions that Ray itself gives it
    cluster.keep_token()
    assert mode(token) == 0o600 and token.read_text() == written


@pytest.mark.parametrize(
    ("name", "value"), [("RAY_AUTH_MODE", "disabled"), ("RAY_AUTH_TOKEN_PATH", "/a/file")]
)
def test_no_token_is_created_if_environment_configures_one(
    name: str, value: str, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    cluster.keep_token()
    assert not (home / ".ray").exists()
