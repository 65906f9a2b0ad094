"""A learner's checkpoint: the adapter in fp32, and the learner's state."""

import io
import pickle
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from unstable.config import ConfigError
from unstable.models.adapters import read_adapter, write_adapter
from unstable.records.files import FORMAT, check_format, new_folder
from unstable.types import Adapter

STATE_FILE = "learner.pt"
AVERAGE = "average"
"""The folder in a checkpoint's that holds the running mean of the weights, as an adapter."""


def write_checkpoint(
    folder: Path,
    adapter: Adapter,
    state: Mapping[str, Any],
    average: Adapter | None = None,
) -> None:
    """Write a new folder, whole or not at all; raises `FileExistsError` rather than write over any.

    `state` is what `torch.load` reads without running code.
    """
    if folder.exists():
        raise FileExistsError(f"checkpoint {folder} is there already; nothing is overwritten")
    for left in folder.parent.glob(f".{folder.name}-*"):  # by a learner that was killed
        shutil.rmtree(left)
    with new_folder(folder) as scratch:
        write_adapter(adapter, scratch)
        if average is not None:
            (scratch / AVERAGE).mkdir()
            write_adapter(average, scratch / AVERAGE)
        saved = io.BytesIO()  # what keeps a file from being written is then the system's own word
        torch.save({"format": FORMAT, **state}, saved)
        (scratch / STATE_FILE).write_bytes(saved.getbuffer())


def read_checkpoint(folder: Path) -> tuple[Adapter, dict[str, Any]]:
    """The adapter and the learner's state; raises `ConfigError` for another format."""
    state = _read_state(folder / STATE_FILE)
    check_format(state, folder / STATE_FILE)
    return read_adapter(folder, folder.name), state


def _read_state(path: Path) -> dict[str, Any]:
    """Tensors and plain values of a file, in which nothing is run."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"{path}: holds more than a learner's state, or less, and is not read ({reason}); "
            "give a run whose files are its own"
        ) from None
    if not isinstance(state, dict):
        raise ConfigError(f"{path}: holds more than a learner's state, or less; it is not read")
    return state


def read_average(folder: Path) -> Adapter:
    """The running mean of the weights in a checkpoint; raises `ConfigError` where it has none."""
    return read_adapter(folder / AVERAGE, f"average of {folder.name}")
