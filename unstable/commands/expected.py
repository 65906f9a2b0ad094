"""Expected duration of a training run, stated before it starts."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from unstable.commands.prepare import Resolved
from unstable.config import ConfigError, RunConfig, load
from unstable.records.folder import RunFolder
from unstable.records.reading import WHOLE, read_rows
from unstable.records.text import duration

MEASURED_S = {
    "first_run": 50,
    "smollm2": 46,
    "tiny": 3,
    "tiny_kuhn": 1.2,
    "tiny_leduc": 2.4,
    "tiny_nim": 2.5,
}
"""Seconds per update of shipped configs, evaluations included, on two CPU cores with bfloat16.

Source: docs/results.md.
"""
NEWEST = 10
"""Number of earlier runs to compare with."""


def expected_line(resolved: Resolved, folder: RunFolder) -> str:
    """Return a line on how long a new run in `folder` is expected to take, and on what basis.

    The basis is the newest run beside it with the same models, games and batches, or else a
    measurement of the shipped config.
    """
    steps = resolved.config.loop.steps
    for start_s, update_s, basis in _paces(resolved, folder.root):
        total = duration(start_s + update_s * steps)
        return f"{'duration':<9}about {total} for {steps} updates ({basis})"
    return f"{'duration':<9}unknown until update 1 of {steps}"


def _paces(resolved: Resolved, new: Path) -> Iterator[tuple[float, float, str]]:
    """Yield seconds before update 1, seconds per update, and the basis, best basis first."""
    others = (path for path in new.parent.iterdir() if path != new and path.is_dir())
    for path in sorted(others, key=lambda path: path.stat().st_mtime, reverse=True)[:NEWEST]:
        folder = RunFolder(path)
        with contextlib.suppress(ConfigError, OSError):
            if _sizes(load(str(folder.config))) == _sizes(resolved.config):
                rows = read_rows(folder.metrics)
                taken = {row["version"]: row.get(WHOLE) or 0.0 for row in rows}
                start_s = taken.pop(0, 0.0)
                if taken:
                    yield start_s, sum(taken.values()) / len(taken), f"as {path} took"
    if resolved.machine.gpus:
        return
    for name, seconds in MEASURED_S.items():
        if _sizes(load(name)) == _sizes(resolved.config):
            yield 0.0, seconds, f"{name} on two CPU cores"


def _sizes(config: RunConfig) -> tuple[object, ...]:
    """Return the parts of a config on which the duration of an update depends."""
    games = [(game.env, game.args, game.prompt) for game in config.games]
    batch = config.learner.batch_size, config.learner.epochs, config.learner.algorithm.name
    return config.model.name, games, batch, config.sampling.max_tokens
