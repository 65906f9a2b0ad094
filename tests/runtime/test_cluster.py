"""Ray on this machine, wherever Python lies and whatever the environment says."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from unstable.planning.machine import LOOPBACK, Placement
from unstable.runtime import cluster
from unstable.types.processes import ProcessId, started

SCRIPT = """
import logging, os, ray, signal, sys
from unstable.planning.machine import LOOPBACK, Placement
from unstable.runtime.cluster import Process, cluster

class Teller:
    def python(self):
        return sys.executable

before = signal.getsignal(signal.SIGTERM), logging.getLogger("ray").handlers[:]
with cluster(1):
    assert signal.getsignal(signal.SIGTERM) == before[0]
    process = Process(Teller, (), Placement(LOOPBACK), threads=1)
    print(ray.get(process.actor.python.remote()))
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


class FakeRay:
    """Ray's way to an actor's end, which one that is stopped does not hear of."""

    def __init__(self) -> None:
        self.killed: list[object] = []

    def remote(self, **_: object) -> Any:
        return lambda kind: SimpleNamespace(remote=kind)

    def kill(self, actor: object) -> None:
        self.killed.append(actor)


class Stopped:
    """A process that is stopped, known by an id that `change` makes another's."""

    def __init__(self, change: dict[str, Any]) -> None:
        self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.child.send_signal(signal.SIGSTOP)
        where = asyncio.Future[ProcessId]()
        own = ProcessId.own()._replace(pid=self.child.pid, started=started(self.child.pid))
        where.set_result(own._replace(**change))
        self.start = SimpleNamespace(remote=lambda: where)


@pytest.mark.parametrize("change", [{}, {"space": "elsewhere"}, {"started": 1}])
async def test_a_process_is_signalled_on_its_own_host_alone(
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
            assert child.wait(timeout=20) == -signal.SIGKILL
        else:
            assert child.poll() is None
        process.kill()  # of one that has gone, and whose id may be another's
    finally:
        child.kill()
        child.wait()
