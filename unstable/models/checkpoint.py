"""A learner's checkpoint: the adapter in fp32, and the learner's state."""

import contextlib
import io
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unstable.config import FORMAT, ConfigError, check_format
from unstable.models.adapters import read_adapter, write_adapter
from unstable.records.files import new_checkpoint
from unstable.records.reading import DamagedError, as_record
from unstable.records.shapes import LearnerState
from unstable.types import Adapter

STATE_FILE = "learner.pt"
AVERAGE = "average"
"""Folder in a checkpoint that holds the running mean of the weights, as an adapter."""


class Snapshot(NamedTuple):
    """A copy of a learner's version; later training does not change it."""

    adapter: Adapter
    average: Adapter | None  # moving average of its weights
    state: Mapping[str, Any]  # loaded by `torch.load` without running code

    def write(self, folder: Path) -> None:
        """Write a new folder, completely or not at all.

        Raises `FileExistsError` instead of overwriting a folder.
        """
        with new_checkpoint(folder) as scratch:
            write_adapter(self.adapter, scratch)
            if self.average is not None:
                (scratch / AVERAGE).mkdir()
                write_adapter(self.average, scratch / AVERAGE)
            saved = io.BytesIO()  # so that writing raises the system's own error
            torch.save({"format": FORMAT, **self.state}, saved)
            (scratch / STATE_FILE).write_bytes(saved.getbuffer())


def copied(value: Any) -> Any:
    """Return a state with its tensors copied to the CPU."""
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(copied, value))
    return value


def read_checkpoint(folder: Path) -> tuple[Adapter, dict[str, Any]]:
    """Read the adapter and the learner's state; raises `ConfigError` if it is no checkpoint."""
    path = folder / STATE_FILE
    try:
        state = _read_state(path)
    except DamagedError as error:
        raise ConfigError(
            f"{path}: not a complete and safe learner state ({error}); "
            "give a run with its original files"
        ) from None
    return read_adapter(folder, folder.name), state


def read_critic(folder: Path) -> Mapping[str, Any] | None:
    """Read the network with which a checkpoint's critic values moves of whole states.

    Returns None if it has none; raises `ConfigError` if its state is damaged.
    """
    if not (folder / STATE_FILE).is_file():
        return None
    critic = read_checkpoint(folder)[1]["algorithm"].get("critic", {})
    found = critic.get("sees") == "state" and "network" in critic["model"]
    return critic["model"] if found else None


def damage_of(folder: Path) -> str | None:
    """Return the defect of the learner's state in a checkpoint; None if it is sound.

    No tensor is read. Raises `ConfigError` for another format.
    """
    try:
        _read_state(folder / STATE_FILE, mmap=True)
    except DamagedError as error:
        return str(error)
    return None


@contextlib.contextmanager
def fitting(folder: Path) -> Iterator[None]:
    """Turn errors of loading a checkpoint's state into `ConfigError`."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (LookupError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise ConfigError(
            f"{folder / STATE_FILE}: does not fit this run's learner ({_short(error)}); remove "
            f"{folder} to resume from the previous version"
        ) from error


def _short(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _read_state(path: Path, *, mmap: bool = False) -> dict[str, Any]:
    """Read the tensors and plain values of a file, without running code from it."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, LookupError) as error:
        raise DamagedError(_short(error)) from None
    if not isinstance(state, dict) or type(state.get("format", FORMAT)) is not int:
        raise DamagedError("no state")
    check_format(state, path)
    as_record(state, LearnerState)
    if problem := _moments_problem(state["optimizer"]["adamw"]):
        raise DamagedError(problem)
    return state


def _moments_problem(adamw: Mapping[str, Any]) -> str | None:
    """Return the defect of AdamW's moments; None if they are sound."""
    known = sum(len(group["params"]) for group in adamw["param_groups"])
    for number, moments in adamw["state"].items():
        tensors = [moments.get(name) for name in ("step", "exp_avg", "exp_avg_sq")]
        if number not in range(known) or not all(isinstance(each, Tensor) for each in tensors):
            return f"optimizer.adamw.state.{number}: missing moments of a parameter"
    return None


def read_average(folder: Path) -> Adapter:
    """Read the running mean of the weights in a checkpoint; raises `ConfigError` if it has none."""
    return read_adapter(folder / AVERAGE, f"average of {folder.name}")
