"""Finished runs: their versions and configs, and actors that serve a version again."""

import asyncio
import zipfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from unstable.commands.prepare import Resolved
from unstable.commands.session import at_work, have_weights, run_to_end, status
from unstable.config import ConfigError, RunConfig, load
from unstable.loop.protocols import Actor
from unstable.models.inspection import check_weights
from unstable.planning.resolve import UNDECIDED
from unstable.records.folder import RunFolder, existing_run
from unstable.tracking.lines import Lines
from unstable.types import PlayerId

LEARNERS_FILE = "learner.pt"
FRESH: Mapping[str, Any] = {
    **{"learner.state": None, "learner.updates_before": 0, "learner.updates_after": 0},
    **{"tracking.run_dir": None, "tracking.name": None},
}
"""Overrides of a run's config, for another run without its optimizer, schedule, folder and name."""
T = TypeVar("T")


Version = int | Literal["best"]
"""A version by its number, or the best in evaluation."""


def checkpoint_of(folder: RunFolder, version: Version | None) -> int:
    """Return a version's number; None means the newest version.

    Raises `ConfigError` if it has no checkpoint, or if the folder has links that lead out of it.
    """
    existing_run(folder.root).check_links()
    place = f"RUN_DIR = {str(folder.root)!r}"
    versions = folder.versions()
    if not versions:
        raise ConfigError(f"{place}: no checkpoints; give a run that has some")
    if version == "best":
        if folder.best_version is None:
            raise ConfigError(f"{place}: the best version is not recorded; give a number")
        return folder.best_version
    version = versions[-1] if version is None else version
    if version not in versions:
        known = ", ".join(map(str, versions))
        raise ConfigError(
            f"version = {version}: checkpoint not found in {folder.root}; available: {known}"
        )
    return version


def check_adapter(place: Path) -> None:
    """Raise `ConfigError` if the weights in a folder cannot be used."""
    try:
        check_weights(place)
    except ValueError as error:
        raise ConfigError(f"{place}: {error}") from None


def from_folder(folder: RunFolder, overrides: Mapping[str, Any]) -> RunConfig:
    """Return the run's config with overrides, to be planned for this machine."""
    return load(str(folder.config), {**UNDECIDED, **overrides})


def run_on_actors(
    resolved: Resolved,
    folder: RunFolder,
    version: int | None,
    component: str,
    work: Callable[[Sequence[Actor], Lines], Awaitable[T]],
) -> T:
    """Run `work` on actors that serve a version, or none, with progress lines; return its result.

    Logs go to `logs/<component>.log`. Raises `RunFailedError` for a failure, and an interrupt's
    exception.
    """
    lines = Lines(status)

    async def main() -> T:
        from unstable.runtime.processes import acting  # importing Ray takes a second

        async with acting(resolved.config, resolved.plan.actors, folder, lines.phase) as actors:
            if version is not None:
                served = PlayerId.policy(version)
                await asyncio.gather(*(actor.publish(served) for actor in actors))
            return await work(actors, lines)

    with at_work(folder, component):
        have_weights(resolved.config.model)
        with lines.refreshing():
            return run_to_end(main(), status)


def is_whole(checkpoint: Path) -> bool:
    """Return whether adapter and learner state are intact; `ConfigError` for another format."""
    from unstable.models.checkpoint import damage_of  # importing torch takes seconds

    try:
        check_weights(checkpoint)
        with zipfile.ZipFile(checkpoint / LEARNERS_FILE) as archive:
            if archive.testzip() is not None:
                return False
    except (OSError, ValueError, zipfile.BadZipFile):
        return False
    return damage_of(checkpoint) is None
