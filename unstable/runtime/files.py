"""Which files of this machine a run's processes read, and how those of other nodes get them.

Only the driver writes the run's folder. Elsewhere a process has a folder of the run's own, in which
lies what it needs; a model and this package have to be there.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from unstable.config import RunConfig
from unstable.config.opponents import CheckpointOpponent
from unstable.records.folder import RunFolder
from unstable.runtime.nodes import MODULES, PACKAGE, ClusterNode, read_files

Purpose = Literal["play", "learn"]
"""What a node is for."""
_GIVEN = "given"


class Files:
    """Files that a run's processes read, and their place for each of them."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self._config = _with_paths(config, lambda _, path: str(path.absolute()))
        self._folder = RunFolder(folder.root.absolute())

    def config_at(self, node: ClusterNode) -> RunConfig:
        """The config whose paths lead to files of that node."""
        root = node.root
        if root is None:
            return self._config
        there = {name: str(root / _GIVEN / name) for name in _paths(self._config)}
        return _with_paths(self._config, lambda name, path: there.get(name, str(path)))

    def folder_at(self, node: ClusterNode) -> RunFolder:
        """The run's folder at that node."""
        return self._folder if node.root is None else RunFolder(node.root)

    async def give(self, node: ClusterNode, purpose: Purpose) -> None:
        """Have at the node what it needs for this purpose; the driver's has it."""
        if node.is_drivers:
            paths = [os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
            node.paths = tuple(dict.fromkeys(paths))
        else:
            await node.give(purpose, self._content(purpose))

    def _content(self, purpose: Purpose) -> dict[str, bytes]:
        """Files by their place in the node's folder."""
        files = {f"{MODULES}/{name}": content for name, content in own_modules().items()}
        for name, path in _paths(self._config).items():
            if purpose == "learn" or name.startswith("opponents"):
                folder = path.resolve()
                found = {each: text for each, text in read_files(folder).items() if _is_read(each)}
                files |= {f"{_GIVEN}/{name}/{each}": text for each, text in found.items()}
        return files


def _is_read(name: str) -> bool:
    """Return whether a process reads a file of a checkpoint: adapter and learner's state."""
    return name.endswith((".safetensors", ".json", ".pt")) and not name.endswith("run_state.json")


def _paths(config: RunConfig) -> dict[str, Path]:
    """Folders that a process reads, by the field that names them; but for the model's."""
    found = {}
    if config.model.init not in ("fresh", "auto"):
        found["model.init"] = Path(config.model.init).expanduser()
    if config.learner.state is not None:
        found["learner.state"] = Path(config.learner.state).expanduser()
    for index, opponent in enumerate(config.opponents.fixed):
        if isinstance(opponent, CheckpointOpponent):
            found[f"opponents.{index}"] = opponent.adapter_folder
    return found


def _with_paths(config: RunConfig, place: Any) -> RunConfig:
    """The config with other paths; `place` gives them, for a field and the path that it has."""
    data = config.model_dump()
    model = Path(config.model.name).expanduser()
    if model.is_dir():
        data["model"]["name"] = str(model.absolute())
    for name, path in _paths(config).items():
        section, _, field = name.partition(".")
        if section == "opponents":
            own = data["opponents"]["fixed"][int(field)]
            # Its name may come from the path.
            own |= {"name": config.opponents.fixed[int(field)].key, "path": place(name, path)}
        else:
            data[section][field] = place(name, path)
    return type(config).model_validate(data)


def own_modules(loaded: Mapping[str, ModuleType] = sys.modules) -> dict[str, bytes]:
    """A user's own modules that this process has imported, by their place below where they lie.

    They are those of the current folder and of PYTHONPATH that belong to no installed package.
    """
    roots = [os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    folders = [Path(root).resolve() for root in roots if root]
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in _own_files(loaded)
        for root in folders
        if path.is_relative_to(root)
    }


def _own_files(loaded: Mapping[str, ModuleType]) -> Iterator[Path]:
    installed = [Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve(), PACKAGE.resolve()]
    for module in list(loaded.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py"):
            continue
        path = Path(file).resolve()
        if path.is_file() and not any(path.is_relative_to(place) for place in installed):
            yield path
