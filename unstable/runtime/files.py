"""Files of this machine that a run's processes read, and their distribution to other nodes.

Only the driver writes the run's folder. On another node a process reads copies in a folder of that
node; the model and this package must be installed there.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from unstable.config import JudgeConfig, LLMOracle, RunConfig
from unstable.records.folder import RunFolder
from unstable.runtime.nodes import MODULES, PACKAGE, ClusterNode, read_files

Purpose = Literal["play", "learn"]
"""Purpose of a node in a run."""
_GIVEN = "given"


class Files:
    """Files that a run's processes read, and their paths on each node."""

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        self._config = _with_paths(config, lambda _, path: str(path.absolute()))
        self._folder = RunFolder(folder.root.absolute())

    def config_at(self, node: ClusterNode) -> RunConfig:
        """Return the config with the paths of its files on that node."""
        root = node.root
        if root is None:
            return self._config
        there = {name: str(root / _GIVEN / name) for name in _paths(self._config)}
        return _with_paths(self._config, lambda name, path: there.get(name, str(path)))

    def folder_at(self, node: ClusterNode) -> RunFolder:
        """Return the run's folder on that node."""
        return self._folder if node.root is None else RunFolder(node.root)

    async def give(self, node: ClusterNode, purpose: Purpose) -> None:
        """Send a node the files that it needs for this purpose; the driver's node has them."""
        if node.is_drivers:
            paths = [os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
            node.paths = tuple(dict.fromkeys(paths))
        else:
            await node.give(purpose, self._content(purpose))

    def _content(self, purpose: Purpose) -> dict[str, bytes]:
        """Return the contents of files by their path in the node's folder."""
        files = {f"{MODULES}/{name}": content for name, content in own_modules().items()}
        for name, path in _paths(self._config).items():
            if purpose == "learn" or name.startswith(("judges", "opponents")):
                folder = path.resolve()
                found = {each: text for each, text in read_files(folder).items() if _is_read(each)}
                files |= {f"{_GIVEN}/{name}/{each}": text for each, text in found.items()}
        return files


def _is_read(name: str) -> bool:
    """Return whether a process reads this file of a checkpoint (adapter or learner state)."""
    return name.endswith((".safetensors", ".json", ".pt")) and not name.endswith("run_state.json")


def _paths(config: RunConfig) -> dict[str, Path]:
    """Return the folders that a process reads, except the model's, by their config field."""
    found = {}
    if config.model.init not in ("fresh", "auto"):
        found["model.init"] = Path(config.model.init).expanduser()
    if config.learner.state is not None:
        found["learner.state"] = Path(config.learner.state).expanduser()
    if (teacher := config.learner.algorithm.teacher.folder) is not None:
        found["learner.algorithm.teacher.adapter"] = teacher
    for index, opponent in enumerate(config.opponents.fixed):
        if opponent.adapter_folder is not None:
            found[f"opponents.{index}"] = opponent.adapter_folder
    for name, judge in config.judges.items():
        if isinstance(judge.oracle, LLMOracle) and judge.oracle.adapter_folder is not None:
            found[f"judges.{name}"] = judge.oracle.adapter_folder
    return found


def _with_paths(config: RunConfig, place: Any) -> RunConfig:
    """Return the config with replaced paths; `place(field, path)` returns the new path."""
    opponents, judges = [*config.opponents.fixed], dict(config.judges)
    changes: dict[str, Any] = {"opponents.fixed": opponents, "judges": judges}
    model = Path(config.model.name).expanduser()
    if model.is_dir():
        changes["model.name"] = str(model.absolute())
    for name, path in _paths(config).items():
        section, _, field = name.partition(".")
        if section == "opponents":
            own = opponents[int(field)]  # its name may come from the path
            opponents[int(field)] = own.updated({"name": own.key, "path": place(name, path)})
        elif section == "judges":
            whole = judges[field].model_dump()
            whole["args"] = {**whole["args"], "engine": place(name, path)}
            judges[field] = JudgeConfig(**whole)
        else:
            changes[name] = place(name, path)
    return config.updated(changes)


def own_modules(loaded: Mapping[str, ModuleType] = sys.modules) -> dict[str, bytes]:
    """Return the source of imported modules of the user, by path relative to the import folder.

    These are the modules in the current folder or on PYTHONPATH outside installed packages.
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
