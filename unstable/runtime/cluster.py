"""Ray on this machine: started, silent, and gone afterwards; what its processes are given."""

import asyncio
import contextlib
import logging
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import ray

from unstable.config import RunConfig
from unstable.records.folder import RunFolder
from unstable.runtime import reaper as reaper

LOOPBACK = "127.0.0.1"
"""Where a run's processes talk to each other: what comes in there is unpickled, so no other machine
may reach it. Ray listens on every interface unless this is its address."""


MARK = "UNSTABLE_RUN"
"""The variable by which Ray's processes are known for a run's own, should its driver be killed."""
MEMORY = "the system most likely ran out of memory and killed it"
"""Why a process has gone without a word, as nearly all of them do that have."""


def again(folder: RunFolder) -> str:
    """How a run goes on whose processes have gone, where there is something to go on from."""
    command = "sft" if folder.examples.exists() else "train"
    going_on = f"then: unstable {command} --resume {folder.root}"
    return going_on if folder.versions() else "then try again"


@contextlib.contextmanager
def cluster(processes: int) -> Iterator[None]:
    """Ray on this machine, with room for `processes`, silent, and gone afterwards.

    A cluster that the environment names (`RAY_ADDRESS`) is not joined.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    with _silent(), _warden() as marked:
        with _sigterm_kept(), _on_loopback(), marked:
            ray.init(
                address="local",
                num_cpus=processes,
                include_dashboard=False,
                _node_ip_address=LOOPBACK,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
        try:
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def _warden() -> Iterator[contextlib.AbstractContextManager[None]]:
    """Should this process be killed meanwhile, Ray's are too, which would stay for ever.

    A process in a session of its own reads from a pipe that ends when we do. What is started within
    the context that it yields is marked as Ray's, with all that comes of it.
    """
    mark = str(uuid.uuid4())
    with subprocess.Popen(
        [sys.executable, reaper.__file__, f"{MARK}={mark}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            yield _marked(mark)
        finally:
            process.kill()


@contextlib.contextmanager
def _marked(mark: str) -> Iterator[None]:
    os.environ[MARK] = mark
    try:
        yield
    finally:
        del os.environ[MARK]


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Ray writes nothing to the terminal meanwhile."""
    # What it brought when it was imported does; ours is where all logs go.
    rays = logging.getLogger("ray")
    handlers, propagate = rays.handlers, rays.propagate
    prints = ray._private.worker.print_to_stdstream
    rays.handlers, rays.propagate = [logging.NullHandler()], True
    # It prints how a worker died, in thirty lines, without being asked; ours is in the log.
    ray._private.worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        rays.handlers, rays.propagate = handlers, propagate
        ray._private.worker.print_to_stdstream = prints


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself as it starts, and would leave the run half ended."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Ray keeps a loopback address meanwhile, which it takes for the host's own otherwise."""
    constants = ray._private.ray_constants
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False  # as where it is for one machine alone
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def process_options(threads: int, gpu: str | None = None, **more: object) -> dict[str, Any]:
    """One logical processor for each process; its threads and its import path are set by us.

    `gpu` is the one card that it sees, as CUDA_VISIBLE_DEVICES names it; none is all that we see.
    """
    variables = {
        "OMP_NUM_THREADS": str(threads),
        # Threads that spin while they wait lose far more to a busy machine than sleeping costs.
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])),
        "TOKENIZERS_PARALLELISM": "false",
        **_interfaces(),
    }
    if gpu is not None:
        variables |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": gpu}
    environment: dict[str, Any] = {"env_vars": variables}
    # Ray gives it to a shell as it is, where a path with a space in it would be two words.
    if (quoted := shlex.quote(sys.executable)) != sys.executable:
        environment["py_executable"] = quoted
    return {"num_cpus": 1, "runtime_env": environment, **more}


def _interfaces() -> dict[str, str]:
    """Learner ranks meet on the loopback interface, unless the environment names another."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return {name: loopback for name in names if loopback and name not in os.environ}


@contextlib.asynccontextmanager
async def in_time(config: RunConfig, component: str, folder: RunFolder) -> AsyncIterator[None]:
    """Bound how long a component may take to start; raises `TimeoutError` that names its log."""
    seconds = config.loop.start_timeout
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise TimeoutError(
            f"{component} has not started in loop.start_timeout = {seconds:g} s; see "
            f"{folder.log(component)}, or raise it"
        ) from None
