"""Run in a report: its config, its rows of metrics and the values derived from them."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from unstable.config import ConfigError, RunConfig, load
from unstable.records import text
from unstable.records.folder import RunFolder
from unstable.records.reading import Row, Skipped, read_document, read_rows
from unstable.records.shapes import EnvironmentRecord
from unstable.records.summary import RunSummary
from unstable.types.metrics import EvalKey

EPOCH, HELD_OUT_LOSS = "sft/epoch", "sft/held_out_loss"
"""Metrics of a run of `unstable sft`."""

LABEL = 24  # maximum characters of a run's label


@dataclass(frozen=True)
class Run:
    """Run in a report; `name` is unique among the runs of the report.

    A folder of `unstable play` has games and no rows, as does a run before its first row.
    """

    name: str
    folder: RunFolder
    config: RunConfig
    rows: list[Row]
    environment: EnvironmentRecord | None  # None: not recorded
    skipped: Skipped = field(default_factory=Skipped)  # damaged records found so far
    short: str = ""  # short label; "": the name

    @cached_property
    def summary(self) -> RunSummary:
        """Results of the run."""
        return RunSummary.of(self.rows)

    @property
    def label(self) -> str:
        """Name in charts and tables of several runs: the part that differs from other names."""
        return self.short or self.name

    @property
    def is_training(self) -> bool:
        """True if the run trains or did; training makes a folder of checkpoints at its start."""
        return bool(self.rows) or self.folder.checkpoints.is_dir()

    @property
    def is_taught(self) -> bool:
        """True if the run is one of `unstable sft`, which learns from examples."""
        return any(EPOCH in row for row in self.rows)

    @property
    def updates(self) -> list[Row]:
        """Rows of updates, without the start, whose time and games do not belong to an update."""
        return [row for row in self.rows if row["version"] > 0]


def read_runs(roots: Sequence[Path]) -> list[Run]:
    """Return the runs in these folders; raises `ConfigError` for a folder that holds none."""
    names = names_of([root.expanduser().resolve() for root in roots])
    shorts = labels(names) if len(names) > 1 else [""]
    named = zip(roots, names, shorts, strict=True)
    return [_read(RunFolder(root), name, short) for root, name, short in named]


def names_of(roots: Sequence[Path]) -> list[str]:
    """Return the folders' names, with paths as needed to differ; `ConfigError` on duplicates."""
    for depth in range(1, max(len(root.parts) for root in roots) + 1):
        names = ["/".join(root.parts[-depth:]) for root in roots]
        if len(set(names)) == len(names):
            return names
    twice = next(root for root in roots if roots.count(root) > 1)
    raise ConfigError(f"RUN = {str(twice)!r}: duplicate; remove one")


def labels(names: Sequence[str]) -> list[str]:
    """Return the names, all different, without the words that all share at the start or end.

    >>> labels(["tiny-Nim-v0-20261123-163000", "tiny-Nim-v0-20261123-171500"])
    ['163000', '171500']
    >>> labels(["tiny", "tiny-2"])
    ['tiny', 'tiny-2']
    """
    words = [re.findall(r"[-_/. ]|[^-_/. ]+", name) for name in names]
    spare = min(map(len, words)) - 1
    begin = _alike(words, spare)
    end = _alike([list(reversed(each)) for each in words], spare - begin)
    shown = ["".join(each[begin : len(each) - end]) for each in words]
    half = LABEL // 2
    shown = [t if len(t) <= LABEL else f"{t[:half]}…{t[1 - half :]}" for t in shown]
    if len(set(shown)) == len(shown):
        return shown
    return [f"{number}: {text}" for number, text in enumerate(shown, 1)]


def _alike(words: Sequence[list[str]], most: int) -> int:
    """Return the number of first words that all share, at most `most`, up to a separator."""
    shared = list(os.path.commonprefix([each[:most] for each in words]))
    while shared and shared[-1] not in "-_/. ":
        shared.pop()
    return len(shared)


def _read(folder: RunFolder, name: str, short: str) -> Run:
    place = f"RUN = {str(folder.root)!r}"
    if not folder.config.is_file():
        raise ConfigError(f"{place}: contains no config.yaml; give a folder of unstable train")
    skipped = Skipped()
    rows = read_rows(folder.metrics, skipped)
    if not rows and not folder.game_files():  # `unstable play` only writes games
        raise ConfigError(f"{place}: contains no metrics yet; wait for the run's first update")
    environment = read_document(folder.environment, EnvironmentRecord, skipped)
    return Run(name, folder, load(str(folder.config)), rows, environment, skipped, short)


def against(run: Run, key: EvalKey) -> str:
    """Return the opponent in words, preceded by the game if the run has several."""
    game = f"{key.env}: " if len(run.config.games) > 1 else ""
    return f"{game}{text.against(key.opponent, key.mode)}"
