"""Ray: started on this machine and gone afterwards, or joined and left; the processes it makes."""

import asyncio
import contextlib
import ipaddress
import logging
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import ray
from ray.exceptions import RayError

from unstable.config import ClusterConfig, ConfigError, RunConfig
from unstable.config.sections import address_problem
from unstable.planning.machine import LOOPBACK, Placement
from unstable.records.folder import RunFolder
from unstable.records.text import command_line
from unstable.runtime import reaper
from unstable.runtime.placement import NodePlace, here
from unstable.types.processes import ProcessId

MARK = "UNSTABLE_RUN"
"""The variable by which Ray's processes are known for a run's own, should its driver be killed."""
MEMORY = "the system most likely ran out of memory and killed it"
"""Why a process has gone without a word, as nearly all of them do that have."""
MOST_FOLDER = 40
"""Bytes of a folder's name; Ray adds 66 for a socket, and Linux allows 107."""
REACH_S = 5.0
"""Seconds that a cluster's address has to answer."""
P = ParamSpec("P")
T = TypeVar("T")


def again(folder: RunFolder) -> str:
    """Return a hint how a run goes on whose processes have gone."""
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


@contextlib.contextmanager
def joined(config: ClusterConfig) -> Iterator[None]:
    """The cluster of that address, of which this machine is a node; it is left as it was.

    What a run has started there ends as it leaves, or as its driver dies: Ray sees to that. Raises
    `ConfigError` where there is none, or it does not let us in.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = config.address
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS", "auto")
        if address != "auto" and (problem := address_problem(address)):
            raise ConfigError(f"RAY_ADDRESS = {address!r}: {problem}")
    if address != "auto":
        _reach(address)
    _use_token()
    alone = is_loopback(address.rpartition(":")[0])
    with _logs_dropped(), _silent(), _sigterm_kept(), _as_it_stands(alone):
        try:
            ray.init(
                address=address,
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
        except (ConnectionError, RuntimeError, ValueError, RayError) as error:
            raise _not_joined(address, error) from error
    with _silent():
        try:
            yield
        finally:
            ray.shutdown()


def _reach(address: str) -> None:
    """Raise `ConfigError` where nothing answers there: Ray would wait for a minute."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=REACH_S).close()
    except OSError as error:
        raise ConfigError(
            f"cluster.address = {address!r}: nothing answers there ({error}); run: "
            f"ray start --head --port={port}, or give the address that it printed"
        ) from None


def _use_token() -> None:
    """Show the token, if there is one, where the environment says nothing of it.

    Ray itself would show it to a cluster that it finds, and not to one whose address it is given.
    """
    from ray._private.authentication import authentication_token_setup as setup

    with _logs_dropped():
        setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def _not_joined(address: str, error: Exception) -> ConfigError:
    """Return the error of a cluster that was not joined, with its remedy."""
    place = f"cluster.address = {address!r}"
    text = " ".join(f"{error} {error.__cause__ or ''}".split())
    if "uthenticat" in text or "token" in text:
        return ConfigError(
            f"{place}: it asks for a token that is not here; put the one of its head into "
            "~/.ray/auth_token, or name it by RAY_AUTH_TOKEN_PATH, and set RAY_AUTH_MODE=token"
        )
    if address == "auto":
        return ConfigError(
            f"{place}: no Ray runs on this machine; run: ray start --head, or "
            "ray start --address=HEAD:PORT, or give the address of one"
        )
    return ConfigError(
        f"{place}: this machine is no node of it; run here: ray start --address={address}"
        f" ({text[:200]})"
    )


@contextlib.contextmanager
def _swapped(owner: object, name: str, value: object) -> Iterator[None]:
    """Give an attribute another value for the duration of the block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _silent() -> contextlib.AbstractContextManager[None]:
    """Keep Ray from printing which workers and nodes died; uses one of its private names."""
    return _swapped(ray._private.worker, "print_to_stdstream", lambda *_, **__: None)


def keep_token() -> None:
    """Make the token that guards Ray's ports, readable by its owner alone; Ray's is so by all.

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
    """Keep what the block starts from ending with the terminal: it is ours to end, in order."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _private_names() -> Iterator[dict[str, Any]]:
    """Options of `ray.init` for one machine alone.

    With `_as_it_stands`, `_silent`, `_use_token` and `nodes.free_resources` all that is used of
    Ray's private names: look here when Ray's version changes.
    """
    with _as_it_stands(True), _silent():  # it prints how a worker died, in thirty lines
        yield {"_node_ip_address": LOOPBACK, **_short_folder()}


def _short_folder() -> dict[str, str]:
    """A folder for Ray's sockets if the names of those in TMPDIR would be too long for Linux.

    Raises `ConfigError` where nothing can be written there either.
    """
    folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    if len(os.fsencode(folder)) <= MOST_FOLDER:
        return {}
    if not os.access("/tmp", os.W_OK):
        raise ConfigError(
            f"TMPDIR = {folder!r}: has more than {MOST_FOLDER} bytes, so Ray's sockets there would "
            "have too long names; set RAY_TMPDIR to a folder with a shorter name"
        )
    return {"_temp_dir": "/tmp/ray"}


def _as_it_stands(alone: bool) -> contextlib.AbstractContextManager[None]:
    """Have Ray take a loopback address as it stands, if it is for one machine `alone`.

    Otherwise Ray puts the host's own address in its place.
    """
    constants = ray._private.ray_constants
    value = constants.ENABLE_RAY_CLUSTER and not alone
    return _swapped(constants, "ENABLE_RAY_CLUSTER", value)


def is_loopback(host: str) -> bool:
    """Return whether an address leads to this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextlib.contextmanager
def _orphans_reaped() -> Iterator[contextlib.AbstractContextManager[None]]:
    """Have Ray's processes killed, which would stay for ever, if this one is killed meanwhile.

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
    """Keep Ray's logs, whose handlers are made as it is imported, from the terminal."""
    rays = logging.getLogger("ray")
    dropped = _swapped(rays, "handlers", [logging.NullHandler()])
    with dropped, _swapped(rays, "propagate", True):  # to where all logs go
        yield


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces as it starts."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


class Process:
    """An object in a process of its own, at its place.

    Its class has a method `start`, which returns `ProcessId.own()`, and `call` of a method and
    arguments. `actor` is Ray's handle; `options` are Ray's too, `variables` its environment's.
    """

    def __init__(
        self,
        kind: type,
        arguments: tuple[object, ...],
        place: Placement | NodePlace,
        *,
        threads: int,
        variables: Mapping[str, str] | None = None,
        **options: object,
    ) -> None:
        made: Any = ray.remote(**(_options(place, threads, variables or {}) | options))(kind)
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
        """End it at once, wherever it is, by Ray.

        On this host by a signal too: Ray asks a process to end, which one that is stopped does not.
        """
        ray.kill(self.actor)
        if self._id is not None:
            self._id.send(signal.SIGKILL)


def forwarded(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a method that has `_call` call the method of that name in another process."""

    @wraps(method)
    async def call(self: Any, *arguments: P.args, **named: P.kwargs) -> T:
        assert not named
        answer: T = await self._call(method.__name__, *arguments)
        return answer

    return call


def _options(place: Placement | NodePlace, threads: int, own: Mapping[str, str]) -> dict[str, Any]:
    """Ray's options, and what all processes have in their environment."""
    variables = {
        "OMP_NUM_THREADS": str(threads),
        # Threads that spin while they wait lose far more to a busy machine than sleeping costs.
        "OMP_WAIT_POLICY": "PASSIVE",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **own,
    }
    return place.options(variables) if isinstance(place, NodePlace) else here(place, variables)


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
