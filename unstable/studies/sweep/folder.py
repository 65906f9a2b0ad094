"""A sweep's folder: its file, its runs, and what was decided that their folders do not show."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unstable.config import read_text
from unstable.records.files import write_lines, write_whole
from unstable.records.reading import read_list
from unstable.records.runs import RunsFolder, append
from unstable.records.shapes import Record
from unstable.studies.sweep.config import SweepConfig, dump_sweep, read_sweep
from unstable.types.figures import Count, Figure


class TrialRecord(Record, kw_only=True):
    """A line of `trials.jsonl`."""

    trial: str
    digest: str


class RungDecision(Record, kw_only=True):
    """A line of `decisions.jsonl`: RungDecision(rung=25, values={"a": 0.9}, kept=("a",))"""

    rung: Count
    values: dict[str, Figure]  # of each setting that was compared, the best first
    kept: tuple[str, ...]  # settings that go on


@dataclass(frozen=True, slots=True)
class SweepFolder(RunsFolder):
    """SweepFolder(Path("outputs/nim")).run("base-seed1") is the run's own folder there."""

    @property
    def file(self) -> Path:
        """The sweep as it was read, with what was left to choose; only a sweep's folder has it."""
        return self.root / "sweep.yaml"

    @property
    def trials(self) -> Path:
        """A line for each run: its setting, its seed, the command that makes it again."""
        return self.root / "trials.jsonl"

    @property
    def report(self) -> Path:
        """The sweep as a page to read."""
        return self.root / "report.html"

    def digests(self) -> dict[str, str]:
        """Of each run's config, as it was when the sweep began."""
        return {row.trial: row.digest for row in read_list(self.trials, TrialRecord)}

    def make(self, sweep: SweepConfig, trials: Sequence[dict[str, Any]]) -> None:
        """Make the folder; raises `ConfigError` where it is there, or cannot be made."""
        self.make_folders("runs")
        write_lines(self.trials, trials)
        write_whole(self.file, dump_sweep(sweep).encode())  # last: then the folder is a sweep's

    def read(self) -> SweepConfig:
        """The sweep of this folder."""
        return read_sweep(read_text(self.file, str(self.file)), str(self.file))

    @property
    def _decisions(self) -> Path:
        return self.root / "decisions.jsonl"

    def decisions(self) -> list[RungDecision]:
        """What became of each rung so far."""
        return read_list(self._decisions, RungDecision)

    def add_decision(self, decision: RungDecision) -> None:
        """Write one down."""
        append(self._decisions, decision)
