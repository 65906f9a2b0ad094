"""Folder of many runs: their folders, output and failures."""

from dataclasses import dataclass
from pathlib import Path

from unstable.config import ConfigError
from unstable.records.files import LineFile
from unstable.records.folder import RunFolder
from unstable.records.reading import read_list
from unstable.records.shapes import FailureRecord, Record


@dataclass(frozen=True, slots=True)
class RunsFolder:
    """Folder of runs: RunsFolder(Path("outputs/nim")).run("base-seed1") is one of the runs."""

    root: Path

    def run(self, name: str) -> RunFolder:
        """Return a run's folder."""
        return RunFolder(self.root / "runs" / name)

    def log(self, name: str) -> Path:
        """Return the file of a run's output, of all its starts."""
        return self.root / "logs" / f"{name}.log"

    def make_folders(self, below: str) -> None:
        """Create the folder, with `below` for the runs; raises `ConfigError` if that fails."""
        place = f"--out = {str(self.root)!r}"
        try:
            for folder in (self.root, self.root / below, self.root / "logs"):
                folder.mkdir(parents=folder == self.root)
        except FileExistsError:
            raise ConfigError(
                f"{place}: already exists; resume it with --resume, or give another folder"
            ) from None
        except OSError as error:
            raise ConfigError(f"{place}: {error.strerror}; give another folder") from None

    @property
    def _failures(self) -> Path:
        return self.root / "failures.jsonl"

    def failures(self) -> dict[str, str]:
        """Return the runs that failed, each with the last line of its output."""
        return {row.run: row.line for row in read_list(self._failures, FailureRecord)}

    def add_failure(self, name: str, line: str) -> None:
        """Record a failed run and the last line of its output."""
        append(self._failures, FailureRecord(run=name, line=line))

    def forget_failures(self) -> None:
        """Forget all failures, so that the runs are retried."""
        self._failures.unlink(missing_ok=True)


def append(path: Path, row: Record) -> None:
    """Append a line to a file, after removing half a line at its end."""
    file = LineFile(path)  # removes an incomplete last line
    file.write(row)
    file.close()
