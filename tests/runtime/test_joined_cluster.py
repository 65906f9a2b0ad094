"""A run on a cluster that others have started and use too: several nodes of Ray on one host."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest
from ray._private.authentication_test_utils import reset_auth_token_state
from ray.cluster_utils import Cluster

from tests.helpers.cli import PATIENCE_S, command, command_line, in_process, no_developers_lines
from tests.helpers.namespaces import NOTICED
from unstable.records.folder import RunFolder

pytestmark = pytest.mark.slow
ARGS: dict[str, Any] = {"num_cpus": 3, "node_ip_address": "127.0.0.1"}
ARGS["object_store_memory"] = 100_000_000
OPTIONS = ["--config", "tiny_nim", "--name", "run", "--loop.mode", "async", "--eval.every", "0"]
OPTIONS += ["--eval.exploitability.every", "0", "--learner.batch_size", "128"]
OPTIONS += ["--learner.micro_batch_size", "64", "--actors.games_in_flight", "16"]
OPTIONS += ["--tracking.report", "false"]
BYSTANDER = """
import os, ray, sys, time
ray.init(address=sys.argv[1], log_to_driver=False)
class Bystander:
    def pid(self):
        return os.getpid()
made = ray.remote(num_cpus=0)(Bystander).remote()
print(ray.get(made.pid.remote()), flush=True)
while True:
    time.sleep(0.2)
    ray.get(made.pid.remote())
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A cluster's head, to which a test may add a node.

    Ray reads its mode of authentication once in a process, so it is reset before and after.
    """
    with patch.dict(os.environ, NOTICED | {"RAY_AUTH_MODE": "disabled"}):
        reset_auth_token_state()
        made = Cluster(initialize_head=True, head_node_args=dict(ARGS, include_dashboard=False))
        yield made
        made.shutdown()
    reset_auth_token_state()


@pytest.fixture
def bystander(cluster: Cluster) -> Iterator[psutil.Process]:
    """Start another user's actor, which serves calls all the time and must survive the test."""
    with subprocess.Popen(
        [sys.executable, "-c", BYSTANDER, cluster.address],
        stdout=subprocess.PIPE,
        text=True,
        # Otherwise Ray replaces the loopback address with the host's own.
        env=os.environ | {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"},
    ) as driver:
        assert driver.stdout is not None
        own = psutil.Process(int(driver.stdout.readline().split()[-1]))
        yield own
        assert driver.poll() is None, "the other user's driver lost its actor"
        assert own.is_running(), "the other user's process was killed"
        driver.kill()


@pytest.mark.tables("nodes", 3)
def test_missing_nodes_are_reported_in_one_line(cluster: Cluster, tmp_path: Path) -> None:
    wait = ["--loop.start_timeout", "1", "--ray_address", "auto"]
    for options, line in (
        (["--cluster.labels", "{kind: none}"], "cluster.min_nodes = 1: only 0 found within"),
        (["--cluster.min_nodes", "3"], "cluster.min_nodes = 3: only 1 found within"),
    ):
        words = ["train", *OPTIONS, *wait, *options]
        done = in_process(tmp_path, *words, RAY_ADDRESS=cluster.address)
        assert done.returncode == 2, done.stderr
        assert line in done.stderr.splitlines()[-1]
        assert not (tmp_path / "outputs").exists()


@pytest.mark.tables("nodes", 1)
def test_cluster_outlives_run(cluster: Cluster, bystander: psutil.Process, tmp_path: Path) -> None:
    second = cluster.add_node(**ARGS)
    steps = 15
    words = [*OPTIONS, "--ray_address", cluster.address, "--cluster.min_nodes", "2"]
    with (tmp_path / "said.txt").open("w") as output:
        run: Any = psutil.Popen(
            command(["train", *words, "--steps", str(steps)]),
            cwd=tmp_path,
            stdout=output,
            stderr=subprocess.STDOUT,
        )

    def said() -> str:
        assert run.is_running() and run.status() != psutil.STATUS_ZOMBIE or run.poll() == 0
        return (tmp_path / "said.txt").read_text()

    def until(text: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(text, said()):
            assert time.monotonic() < deadline, said()
            time.sleep(0.1)

    until(r"2 nodes for this run · no token")
    until(r"update 3/")
    cluster.remove_node(second, allow_graceful=False)
    until(r"lost its place on 127\.0\.0\.1")
    assert run.wait(timeout=PATIENCE_S) == 0, said()
    assert no_developers_lines(said())
    folder = RunFolder(tmp_path / "outputs/run")
    assert folder.versions()[-1] == steps
    assert {path.name for path in (folder.root / "logs").glob("actor-*.log")} >= {
        "actor-0.log",
        "actor-1.log",
    }
    head: Any = cluster.head_node
    raylet = psutil.Process(head.all_processes["raylet"][0].process.pid)
    left = "\n".join(map(command_line, raylet.children(recursive=True)))
    assert not re.search("ActorProcess|LearnerProcess|NodeAgent", left), "its processes have ended"
