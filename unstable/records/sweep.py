"""A sweep's folder: its file, its runs, and what was decided that their folders do not show."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from unstable.config import ConfigError, read_text
from unstable.config.sweep import SweepConfig, dump_sweep, read_sweep
from unstable.records.files import LineFile, read_lines, write_lines, write_whole
from unstable.records.folder import RunFolder


class Decision(NamedTuple):
    """What became of a rung: Decision(25, {"a": 0.9, "b": 0.4}, ("a",))"""

    rung: int
    values: dict[str, float]  # of each setting that was compared, the best first
    kept: tuple[str, ...]  # settings that go on


@dataclass(frozen=True, slots=True)
class SweepFolder:
    """SweepFolder(Path("outputs/nim")).run("base-seed1") is the run's own folder there."""

    root: Path

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

    def run(self, trial: str) -> RunFolder:
        """A run's folder."""
        return RunFolder(self.root / "runs" / trial)

    def log(self, trial: str) -> Path:
        """What a run has printed, of each of its starts."""
        return self.root / "logs" / f"{trial}.log"

    def make(self, sweep: SweepConfig, trials: Sequence[dict[str, Any]]) -> None:
        """Make the folder; raises `ConfigError` where it is there, or cannot be made."""
        place = f"--out = {str(self.root)!r}"
        try:
            for folder in (self.root, self.root / "runs", self.root / "logs"):
                folder.mkdir(parents=folder == self.root)
        except FileExistsError:
            raise ConfigError(
                f"{place} exists; go on with it by --resume, or give another"
            ) from None
        except OSError as error:
            raise ConfigError(f"{place} cannot be made ({error.strerror}); give another") from None
        write_lines(self.trials, trials)
        write_whole(self.file, dump_sweep(sweep).encode())  # last: then the folder is a sweep's

    def read(self) -> SweepConfig:
        """The sweep of this folder."""
        return read_sweep(read_text(self.file, str(self.file)), str(self.file))

    @property
    def _decisions(self) -> Path:
        return self.root / "decisions.jsonl"

    @property
    def _failures(self) -> Path:
        return self.root / "failures.jsonl"

    def decisions(self) -> list[Decision]:
        """What became of each rung so far."""
        return [
            Decision(row["rung"], row["values"], tuple(row["kept"]))
            for row in _rows(self._decisions)
        ]

    def add_decision(self, decision: Decision) -> None:
        """Write one down."""
        _append(self._decisions, decision._asdict())

    def failures(self) -> dict[str, str]:
        """The runs that have failed, each with the last line that it has printed."""
        return {row["trial"]: row["line"] for row in _rows(self._failures)}

    def add_failure(self, trial: str, line: str) -> None:
        """Write one down."""
        _append(self._failures, {"trial": trial, "line": line})

    def forget_failures(self) -> None:
        """They are tried again."""
        self._failures.unlink(missing_ok=True)


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    return (row for _, row in read_lines(path)) if path.is_file() else iter(())


def _append(path: Path, row: dict[str, Any]) -> None:
    file = LineFile(path)  # which first takes off half a line
    file.write(row)
    file.close()
