"""Ray: a local instance that ends with the run, or a joined cluster; and processes in it."""

import asyncio
import contextlib
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
from ray.exceptions import ObjectLostError, RayActorError, RayError

from unstable.config import ClusterConfig, ConfigError, RunConfig
from unstable.config.endpoint import is_loopback
from unstable.config.sections import address_problem
from unstable.planning.machine import LOOPBACK, Placement
from unstable.records.folder import RunFolder
from unstable.records.text import command_line
from unstable.runtime import reaper
from unstable.runtime.placement import NodePlace, here
from unstable.types.processes import ProcessId

MARK = "UNSTABLE_RUN"
"""Environment variable that marks the Ray processes of a run, in case its driver is killed."""
LOST = (RayActorError, ObjectLostError)
"""Errors of a call whose process died, or whose answer was lost with its node."""
MEMORY = "the system most likely ran out of memory and killed it"
"""Most likely cause of a process's death without a log message."""
MOST_FOLDER = 40
"""Maximum length of a temporary folder in bytes; Ray adds 66 for a socket, Linux allows 107."""
REACH_S = 5.0
"""Seconds that a cluster's address has to answer."""
P = ParamSpec("P")
T = TypeVar("T")


def again(folder: RunFolder) -> str:
    """Return a hint on how to continue a run whose processes have died."""
    command = "sft" if folder.examples.exists() else "train"
    resume = f"then: {command_line('unstable', command, '--resume', folder.root)}"
    return resume if folder.versions() else "then retry"


@contextlib.contextmanager
def cluster(processes: int) -> Iterator[None]:
    """Start a silent Ray with room for `processes` on this machine; shut it down after the block.

    A cluster that the environment names (`RAY_ADDRESS`) is not joined. Ray unpickles all that
    arrives, so it listens on the loopback address, which no other machine can reach.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # added to ours; Ray's default is 15
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
    """Join the cluster at `config.address`, of which this machine is a node; leave it unchanged.

    Ray ends the run's processes when the run leaves or its driver dies. Raises `ConfigError` if no
    cluster answers at the address or the cluster refuses the connection.
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
    """Raise `ConfigError` if nothing answers at the address; Ray would wait for a minute."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=REACH_S).close()
    except OSError as error:
        raise ConfigError(
            f"cluster.address = {address!r}: connection failed ({error}); run: "
            f"ray start --head --port={port}, or set the address that this command printed"
        ) from None


def _use_token() -> None:
    """Enable Ray's token, if one exists, unless the environment configures it.

    Ray itself presents the token to a cluster that it discovers, but not to one given by address.
    """
    from ray._private.authentication import authentication_token_setup as setup

    with _logs_dropped():
        setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)


def _not_joined(address: str, error: Exception) -> ConfigError:
    """Return the error of a failure to join a cluster, with its remedy."""
    place = f"cluster.address = {address!r}"
    text = " ".join(f"{error} {error.__cause__ or ''}".split())
    if "uthenticat" in text or "token" in text:
        return ConfigError(
            f"{place}: authentication failed; copy the token of its head node to "
            "~/.ray/auth_token, or set RAY_AUTH_TOKEN_PATH to its file, and RAY_AUTH_MODE=token"
        )
    if address == "auto":
        return ConfigError(
            f"{place}: Ray is not running on this machine; run: ray start --head, or "
            "ray start --address=HEAD:PORT, or set cluster.address to HEAD:PORT"
        )
    return ConfigError(
        f"{place}: this machine is not a node of the cluster ({text[:200]}); run here: "
        f"ray start --address={address}"
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
    """Keep Ray from printing which workers and nodes died; uses a private name of Ray."""
    return _swapped(ray._private.worker, "print_to_stdstream", lambda *_, **__: None)


def keep_token() -> None:
    """Create the token that guards Ray's ports, readable only by its owner (Ray's is by everyone).

    An existing token is kept. Does nothing if the environment names a token or disables tokens.
    """
    if "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ:
        return
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return
    path = Path.home() / ".ray" / "auth_token"
    with contextlib.suppress(OSError):  # Ray reports the same error
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent) as scratch:  # readable only by its owner
            scratch.write(secrets.token_hex(32).encode("ascii"))
            scratch.flush()
            with contextlib.suppress(FileExistsError):
                os.link(scratch.name, path)  # atomic
        path.chmod(0o600)


@contextlib.contextmanager
def _hangups_held() -> Iterator[None]:
    """Block SIGHUP in processes that the block starts: the run ends them, not the terminal."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _private_names() -> Iterator[dict[str, Any]]:
    """Yield options of `ray.init` for a single machine.

    With `_as_it_stands`, `_silent`, `_use_token` and `nodes.free_resources`, these are all uses of
    Ray's private names: check them when Ray's version changes.
    """
    with _as_it_stands(True), _silent():  # Ray prints thirty lines per dead worker
        yield {"_node_ip_address": LOOPBACK, **_short_folder()}


def _short_folder() -> dict[str, str]:
    """Return the option of a short folder for Ray's sockets; empty if TMPDIR is short enough.

    Linux limits the length of a socket's path. Raises `ConfigError` if /tmp is not writable.
    """
    folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    if len(os.fsencode(folder)) <= MOST_FOLDER:
        return {}
    if not os.access("/tmp", os.W_OK):
        raise ConfigError(
            f"TMPDIR = {folder!r}: longer than {MOST_FOLDER} bytes, too long for paths of Ray's "
            "sockets; set RAY_TMPDIR to a folder with a shorter path"
        )
    return {"_temp_dir": "/tmp/ray"}


def _as_it_stands(alone: bool) -> contextlib.AbstractContextManager[None]:
    """Make Ray keep a loopback address if the cluster is for one machine `alone`.

    Otherwise Ray replaces it with the host's own address.
    """
    constants = ray._private.ray_constants
    value = constants.ENABLE_RAY_CLUSTER and not alone
    return _swapped(constants, "ENABLE_RAY_CLUSTER", value)


@contextlib.contextmanager
def _orphans_reaped() -> Iterator[contextlib.AbstractContextManager[None]]:
    """Ensure that Ray's processes, which would stay forever, are killed if this one is killed.

    A process in its own session reads a pipe that ends with this process. Processes started within
    the yielded context, and all their descendants, are marked as Ray's.
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
    """Keep Ray's logs off the terminal; Ray creates their handlers on import."""
    rays = logging.getLogger("ray")
    dropped = _swapped(rays, "handlers", [logging.NullHandler()])
    with dropped, _swapped(rays, "propagate", True):  # to the root logger's handlers
        yield


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Restore the handler of SIGTERM, which Ray replaces at its start."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


class Process:
    """An object in a separate process at a place.

    Its class has `start`, which returns `ProcessId.own()`, and `call(method, *arguments)`. `actor`
    is Ray's handle; `options` are passed to Ray, `variables` to the process's environment.
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
        """Start the object and return the process's id on its host."""
        self._id = ProcessId(*await self.actor.start.remote(*arguments))
        return self._id.pid

    async def call(self, method: str, *arguments: object, group: str | None = None) -> Any:
        """Call a method; an argument that is a Ray reference arrives as its value.

        Calls of a concurrency group run in a thread separate from all other calls.
        """
        return await self.actor.call.options(concurrency_group=group).remote(method, *arguments)

    def kill(self) -> None:
        """Kill the process at once, wherever it runs, through Ray.

        On this host also by SIGKILL: Ray requests an exit, which a stopped process never performs.
        """
        ray.kill(self.actor)
        if self._id is not None:
            self._id.send(signal.SIGKILL)


def forwarded(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a method that calls the method of that name in another process, through `_call`."""

    @wraps(method)
    async def call(self: Any, *arguments: P.args, **named: P.kwargs) -> T:
        assert not named
        answer: T = await self._call(method.__name__, *arguments)
        return answer

    return call


def _options(place: Placement | NodePlace, threads: int, own: Mapping[str, str]) -> dict[str, Any]:
    """Return Ray's options, including the environment that all processes share."""
    variables = {
        "OMP_NUM_THREADS": str(threads),
        # On a busy machine, threads that spin while waiting cost more than sleeping ones. Waking
        # one takes longer than a tiny model's products, so libgomp first spins for some 0.05 ms.
        "OMP_WAIT_POLICY": "PASSIVE",
        "GOMP_SPINCOUNT": "2000",
        "TOKENIZERS_PARALLELISM": "false",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        **own,
    }
    return place.options(variables) if isinstance(place, NodePlace) else here(place, variables)


@contextlib.asynccontextmanager
async def in_time(config: RunConfig, component: str, folder: RunFolder) -> AsyncIterator[None]:
    """Limit how long a component may take to start; raise a `TimeoutError` that names its log."""
    seconds = config.loop.start_timeout
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise TimeoutError(
            f"{component} did not start within loop.start_timeout = {seconds:g} s; see "
            f"{folder.log(component)}, or raise loop.start_timeout"
        ) from None
