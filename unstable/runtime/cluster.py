"""Ray: started on this machine, silent, and gone afterwards; the processes that it makes."""

import asyncio
import contextlib
import logging
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import ray

from unstable.config import RunConfig
from unstable.planning.machine import LOOPBACK, Placement
from unstable.records.folder import RunFolder
from unstable.records.text import command_line
from unstable.runtime import reaper
from unstable.types.processes import ProcessId

MARK = "UNSTABLE_RUN"
"""The variable by which Ray's processes are known for a run's own, should its driver be killed."""
MEMORY = "the system most likely ran out of memory and killed it"
"""Why a process has gone without a word, as nearly all of them do that have."""


def again(folder: RunFolder) -> str:
    """How a run goes on whose processes have gone, where there is something to go on from."""
    command = "sft" if folder.examples.exists() else "train"
    going_on = f"then: {command_line('unstable', command, '--resume', folder.root)}"
    return going_on if folder.versions() else "then try again"


@contextlib.contextmanager
def cluster(processes: int) -> Iterator[None]:
    """Ray on this machine, with room for `processes`, silent, and gone afterwards.

    A cluster that the environment names (`RAY_ADDRESS`) is not joined. What comes in where Ray
    listens is unpickled, so it listens at the loopback address, which no other machine reaches.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # more than ours; Ray's own default is 15
    keep_token()
    with _logs_dropped(), _private_names() as private, _orphans_reaped() as marked:
        with _sigterm_kept(), _hangups_held(), marked:
            ray.init(
                address="local",
                num_cpus=processes,
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
                **private,
            )
        try:
            yield
        finally:
            ray.shutdown()


def keep_token() -> None:
    """The token that guards Ray's ports is its owner's alone; Ray itself would let others read it.

    Ray takes one that is there. Where the environment names another, or none is wanted, nothing is
    done.
    """
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return
    path = Path.home() / ".ray" / "auth_token"
    with contextlib.suppress(OSError):  # which Ray meets too, and says
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent) as scratch:  # which is its owner's alone
            scratch.write(secrets.token_hex(32).encode("ascii"))
            scratch.flush()
            with contextlib.suppress(FileExistsError):
                os.link(scratch.name, path)  # whole, or not at all
        path.chmod(0o600)


@contextlib.contextmanager
def _hangups_held() -> Iterator[None]:
    """What is started meanwhile does not end with the terminal: it is ours to end, in order."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _private_names() -> Iterator[dict[str, Any]]:
    """All that is used of Ray's private names: look here when Ray's version changes.

    Yields options of `ray.init`.
    """
    worker, constants = ray._private.worker, ray._private.ray_constants
    before = worker.print_to_stdstream, constants.ENABLE_RAY_CLUSTER
    # It prints how a worker died, in thirty lines, without being asked; ours is in the log.
    worker.print_to_stdstream = lambda *_, **__: None
    # Ray takes a loopback address for the host's own one, unless it is for one machine alone.
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield {"_node_ip_address": LOOPBACK}
    finally:
        worker.print_to_stdstream, constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def _orphans_reaped() -> Iterator[contextlib.AbstractContextManager[None]]:
    """Should this process be killed meanwhile, Ray's are killed too, which would stay for ever.

    A process in a session of its own reads from a pipe that ends when we do. What is started within
    the context that it yields is marked as Ray's, and so is all that this starts.
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
def _logs_dropped() -> Iterator[None]:
    """Ray logs nothing to the terminal meanwhile: its handlers of import time would."""
    rays = logging.getLogger("ray")
    before = rays.handlers, rays.propagate
    rays.handlers, rays.propagate = [logging.NullHandler()], True  # to where all logs go
    try:
        yield
    finally:
        rays.handlers, rays.propagate = before


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself as it starts, and would leave the run half ended."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


class Process:
    """An object in a process of its own, where `placement` says.

    Its class has a method `start`, which returns `ProcessId.own()`, and `call` of a method and
    arguments. `actor` is Ray's handle; `options` are Ray's too, `variables` its environment's.
    """

    def __init__(
        self,
        kind: type,
        arguments: tuple[object, ...],
        placement: Placement,
        *,
        threads: int,
        variables: Mapping[str, str] | None = None,
        **options: object,
    ) -> None:
        made: Any = ray.remote(**(_options(placement, threads, variables or {}) | options))(kind)
        self.actor = made.remote(*arguments)
        self._id: ProcessId | None = None  # once it has started

    async def start(self, *arguments: object) -> int:
        """Start the object; returns the process's id on its host."""
        self._id = ProcessId(*await self.actor.start.remote(*arguments))
        return self._id.pid

    async def call(self, method: str, *arguments: object, group: str | None = None) -> Any:
        """Call a method; an argument that is Ray's reference is the value there.

        Calls of a group have a thread of their own, beside those of other groups and of none.
        """
        return await self.actor.call.options(concurrency_group=group).remote(method, *arguments)

    def kill(self) -> None:
        """End it at once; on this host by a signal too, as Ray asks one that is stopped to end."""
        ray.kill(self.actor)
        if self._id is not None:
            self._id.send(signal.SIGKILL)


def _options(placement: Placement, threads: int, own: Mapping[str, str]) -> dict[str, Any]:
    """One logical processor of its node; cards, threads and import path are set by us."""
    variables = {
        "OMP_NUM_THREADS": str(threads),
        # Threads that spin while they wait lose far more to a busy machine than sleeping costs.
        "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONPATH": os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")])),
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(placement.gpus),
        **_interfaces(),
        **own,
    }
    environment: dict[str, Any] = {"env_vars": variables}
    # Ray gives it to a shell as it is, where a path with a space in it would be two words.
    if (quoted := shlex.quote(sys.executable)) != sys.executable:
        environment["py_executable"] = quoted
    # Ray gives each node a resource of this name: who asks for a little of it runs there.
    node = {f"node:{placement.node}": 0.001}
    return {"num_cpus": 1, "resources": node, "runtime_env": environment}


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
