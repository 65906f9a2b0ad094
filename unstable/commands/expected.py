"""Expected duration of a training run, stated before it starts."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from unstable.commands.prepare import Resolved
from unstable.config import ConfigError, RunConfig, load
from unstable.records.folder import RunFolder
from unstable.records.reading import WHOLE, read_rows
from unstable.records.text import duration

MEASURED_S = dict(first_run=50, smollm2=46, tiny=4.2, tiny_kuhn=1.6, tiny_leduc=2.7, tiny_nim=2)
"""Seconds per update on two CPU cores (docs/results.md, docs/small_worlds.md), start included."""


def expected_line(resolved: Resolved, folder: RunFolder) -> str:
    """Return a line with the expected duration of a new run in `folder`, and its basis.

    The basis is the newest run beside it of the same model, games and batches, or `MEASURED_S`.
    """
    steps = resolved.config.loop.steps
    pace = next(_paces(resolved, folder.root), None)
    if pace is None:
        return f"{'duration':<9}unknown until update 1 of {steps}"
    start_s, update_s, basis = pace
    total = duration(start_s + update_s * steps)
    return f"{'duration':<9}about {total} for {steps} updates ({basis})"


def _paces(resolved: Resolved, new: Path) -> Iterator[tuple[float, float, str]]:
    """Yield seconds before update 1, seconds per update, and the basis, best basis first."""
    wanted = _sizes(resolved.config)
    with contextlib.suppress(OSError):  # another process removes a run
        runs = sorted(new.parent.iterdir(), key=lambda run: run.stat().st_mtime, reverse=True)
        for run in (RunFolder(path) for path in runs[:10] if path != new):
            with contextlib.suppress(ConfigError):  # not a run, or of another release
                rows = read_rows(run.metrics) if _sizes(load(str(run.config))) == wanted else []
                taken = {row["version"]: row.get(WHOLE) or 0.0 for row in rows}
                start_s = taken.pop(0, 0.0)
                if taken:
                    yield start_s, sum(taken.values()) / len(taken), f"as {run.root} took"
    if not resolved.machine.gpus:
        for name, seconds in MEASURED_S.items():
            if _sizes(load(name)) == wanted:
                yield 0.0, seconds, f"{name} on two CPU cores"


def _sizes(config: RunConfig) -> tuple[object, ...]:
    """Return the parts of a config on which the duration of an update depends."""
    games = [(game.env, game.args, game.prompt) for game in config.games]
    batch = config.learner.batch_size, config.learner.epochs, config.learner.algorithm.name
    return type(config), config.model.name, games, batch, config.sampling.max_tokens
