"""A learner's checkpoint: the adapter in fp32, the learner's state, and the state of the run."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from unstable.models.adapters import read_adapter, write_adapter
from unstable.records.files import FORMAT, check_format, new_folder
from unstable.types import Adapter

STATE_FILE = "learner.pt"
RUN_STATE_FILE = "run_state.json"
AVERAGE = "average"
"""The folder in a checkpoint's that holds the running mean of the weights, as an adapter."""


def write_checkpoint(
    folder: Path,
    adapter: Adapter,
    state: Mapping[str, Any],
    run_state: Mapping[str, Any],
    average: Adapter | None = None,
) -> None:
    """Write a new folder, whole or not at all; raises `FileExistsError` rather than write over any.

    `state` is what `torch.load` reads without running code, `run_state` what JSON holds.
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
        torch.save({"format": FORMAT, **state}, scratch / STATE_FILE)
        text = json.dumps({"format": FORMAT, **run_state}, allow_nan=False)
        (scratch / RUN_STATE_FILE).write_text(text, encoding="utf-8")


def read_checkpoint(folder: Path) -> tuple[Adapter, dict[str, Any], dict[str, Any]]:
    """The adapter, the learner's state and the run's; raises `ConfigError` for another format."""
    state = torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True)
    run_state = json.loads((folder / RUN_STATE_FILE).read_text(encoding="utf-8"))
    for file, content in ((STATE_FILE, state), (RUN_STATE_FILE, run_state)):
        check_format(content, folder / file)
    return read_adapter(folder, folder.name), state, run_state


def read_average(folder: Path) -> Adapter:
    """The running mean of the weights in a checkpoint; raises `ConfigError` where it has none."""
    return read_adapter(folder / AVERAGE, f"average of {folder.name}")
