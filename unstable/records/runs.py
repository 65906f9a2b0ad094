"""A folder of many runs: where each one is, what it printed, and which have failed."""

from dataclasses import dataclass
from pathlib import Path

from unstable.config import ConfigError
from unstable.records.files import LineFile
from unstable.records.folder import RunFolder
from unstable.records.reading import read_list
from unstable.records.shapes import FailureRecord, Record


@dataclass(frozen=True, slots=True)
class RunsFolder:
    """RunsFolder(Path("outputs/nim")).run("base-seed1") is the run's own folder there."""

    root: Path

    def run(self, name: str) -> RunFolder:
        """A run's folder."""
        return RunFolder(self.root / "runs" / name)

    def log(self, name: str) -> Path:
        """File of a run's output, of all its starts."""
        return self.root / "logs" / f"{name}.log"

    def make_folders(self, below: str) -> None:
        """Make it, with `below` for the runs; raises `ConfigError` where it is or cannot be."""
        place = f"--out = {str(self.root)!r}"
        try:
            for folder in (self.root, self.root / below, self.root / "logs"):
                folder.mkdir(parents=folder == self.root)
        except FileExistsError:
            raise ConfigError(
                f"{place} exists; go on with it by --resume, or give another"
            ) from None
        except OSError as error:
            raise ConfigError(f"{place} cannot be made ({error.strerror}); give another") from None

    @property
    def _failures(self) -> Path:
        return self.root / "failures.jsonl"

    def failures(self) -> dict[str, str]:
        """The runs that have failed, each with the last line that it has printed."""
        return {row.run: row.line for row in read_list(self._failures, FailureRecord)}

    def add_failure(self, name: str, line: str) -> None:
        """Write one down."""
        append(self._failures, FailureRecord(run=name, line=line))

    def forget_failures(self) -> None:
        """They are tried again."""
        self._failures.unlink(missing_ok=True)


def append(path: Path, row: Record) -> None:
    """Add a line to a file, which may end in half a one."""
    file = LineFile(path)  # which first takes off half a line
    file.write(row)
    file.close()
