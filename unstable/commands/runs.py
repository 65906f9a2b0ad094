"""Lists: the runs in a folder, one row per run (`unstable runs`), and the vetted games."""

import contextlib
import time
from pathlib import Path
from typing import Any, NamedTuple

from unstable.commands.diagnosis import condition_of, status_of
from unstable.config import ConfigError, read_yaml
from unstable.records.folder import RunFolder
from unstable.records.reading import read_last_rows
from unstable.records.summary import RunSummary
from unstable.records.tables import Table, newest_score
from unstable.records.text import duration
from unstable.tracking.lines import print_lines, print_table

ROWS = 200
"""Last rows of metrics in which to search the newest evaluation."""


class Listed(NamedTuple):
    """A run: Listed("outputs/first", "running", 12, 52, "random 0.75", 3600.0, ("kl",))"""

    path: str
    state: str
    version: int
    versions: int | None
    score: str
    age_s: float  # since the last write
    tags: tuple[str, ...]


def runs(root: Path, tag: str | None = None) -> list[Listed]:
    """Print the runs in a folder, newest last, and return them; `tag` selects runs with that tag.

    Raises `ConfigError` for a missing folder.
    """
    if not root.is_dir():
        raise ConfigError(f"FOLDER = {str(root)!r}: not found; give a folder with runs")
    found = sorted(_listed(root), key=lambda run: -run.age_s)
    found = [run for run in found if tag is None or tag in run.tags]
    if found:
        columns = ["run", "state", "version", "newest score", "written", "tags"]
        print_table(Table("", columns, [_cells(run) for run in found]))
    else:
        print_lines([f"no runs in {root}"])
    return found


def _listed(root: Path) -> list[Listed]:
    found: list[Listed] = []
    for path in root.iterdir():
        with contextlib.suppress(OSError):  # deleted meanwhile, or unreadable
            if (run := _read(RunFolder(path))) is not None:
                found.append(run)
    return found


def _read(folder: RunFolder) -> Listed | None:
    """Return a run by its folder; None for a folder of no run, or of a person's game."""
    dates = [each for each in (folder.metrics, folder.status) if each.exists()]
    if not (dates and folder.config.is_file()):
        return None
    now = time.time()
    config = _read_config(folder)
    tags = _at(config, "tracking", "tags") or []
    steps = _at(config, "loop", "steps")
    return Listed(
        path=str(folder.root),
        state=condition_of(folder, status_of(folder), now).word,
        version=max(folder.versions(), default=0),
        versions=steps if isinstance(steps, int) else None,
        score=_score(folder),
        age_s=now - max(each.stat().st_mtime for each in dates),
        tags=tuple(map(str, tags)) if isinstance(tags, list) else (),
    )


def _read_config(folder: RunFolder) -> Any:
    """Return the unvalidated config, since a run whose config is no longer valid is listed too."""
    try:
        return read_yaml(folder.config.read_text(encoding="utf-8"), str(folder.config))
    except (ConfigError, OSError, ValueError):
        return {}


def _at(value: Any, *names: str) -> Any:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _score(folder: RunFolder) -> str:
    try:
        return newest_score(RunSummary.of(read_last_rows(folder.metrics, ROWS)))
    except ConfigError:  # of another release, still listed
        return "another release"


def _cells(run: Listed) -> list[str]:
    version = f"{run.version}" if run.versions is None else f"{run.version} of {run.versions}"
    written = f"{duration(max(run.age_s, 0.0))} ago"
    return [run.path, run.state, version, run.score, written, ", ".join(run.tags)]


def list_games() -> None:
    """Print the vetted games, one block per game: its name, then one line per column."""
    from unstable.games.catalog.vetted import COLUMNS, PACK

    blocks = (
        [game, *(f"{name:8} {cell}" for name, cell in zip(COLUMNS[1:], cells, strict=True))]
        for game, *cells in (vetted.cells() for vetted in PACK)
    )
    print("\n\n".join("\n  ".join(block) for block in blocks))
