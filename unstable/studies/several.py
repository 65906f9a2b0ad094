"""Several runs as child processes: the common part of sweeps and leagues.

Each is an ordinary run. Progress is read from the runs' own folders, so a study resumes after any
interruption.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import yaml

from unstable.commands.diagnosis import condition_of, status_of
from unstable.commands.prepare import settle
from unstable.commands.session import Terminated, handled, status
from unstable.config import ConfigError, RunConfig, RunFailedError, read_text
from unstable.config.base import Section
from unstable.config.reading import dump_section
from unstable.engines.kinds import NEEDS
from unstable.loop.state import parse
from unstable.planning.machine import Machine
from unstable.processes.child import Child
from unstable.records.files import LineFile, write_lines, write_whole
from unstable.records.folder import RunFolder
from unstable.records.reading import Row, Skipped, read_list, read_rows
from unstable.records.shapes import FailureRecord, Record
from unstable.records.text import command_line
from unstable.studies.shares import Share, check_at_once, most_at_once, shares

LOOK_S = 0.5
IN_ORDER = (0, 130, 143, -signal.SIGINT, -signal.SIGTERM)
"""Exit codes of a run that stopped gracefully on request."""
_TAIL_BYTES = 2**16
_WORD = re.compile(r"(?!(true|false|null)$)[A-Za-z_./~][^\n]*")
"""Texts that the command line reads as strings without JSON quotes."""


class ConfigRecord(Record, kw_only=True):
    """A row of a study's config digests, taken when it began: of a trial or of a member."""

    trial: str = ""
    member: str = ""
    digest: str


@dataclass(frozen=True, slots=True)
class StudyFolder:
    """A study's folder: its file, a digest of each config, its runs, their output and failures."""

    root: Path
    kind: ClassVar[str]  # command that makes it
    below: ClassVar[str]  # subfolder of its runs
    listed: ClassVar[str]  # the file of digests

    def run(self, name: str) -> RunFolder:
        """Return a run's folder."""
        return RunFolder(self.root / self.below / name)

    def log(self, name: str) -> Path:
        """Return the file of a run's output, of all its starts."""
        return self.root / "logs" / f"{name}.log"

    @property
    def file(self) -> Path:
        """The study's file, with automatic choices made; it marks the folder as a study's."""
        return self.root / f"{self.kind}.yaml"

    @property
    def configs(self) -> Path:
        """The file of digests, one row per config."""
        return self.root / self.listed

    def make(self, study: Section, configs: Sequence[dict[str, Any]]) -> None:
        """Create the folder; raises `ConfigError` if it exists or cannot be created."""
        place = f"--out = {str(self.root)!r}"
        try:
            for folder in (self.root, self.root / self.below, self.root / "logs"):
                folder.mkdir(parents=folder == self.root)
        except FileExistsError:
            raise ConfigError(
                f"{place}: already exists; resume it with --resume, or give another folder"
            ) from None
        except OSError as error:
            raise ConfigError(f"{place}: {error.strerror}; give another folder") from None
        write_lines(self.configs, configs)
        write_whole(self.file, dump_section(study).encode())  # last: it marks a complete folder

    def text(self) -> str:
        """Return the text of the study's file; raises `ConfigError` without one."""
        if not self.file.is_file():
            raise ConfigError(
                f"FOLDER = {str(self.root)!r}: {self.file.name} not found; give a folder "
                f"of unstable {self.kind}"
            )
        return read_text(self.file, str(self.file))

    def check_same(self, digests: Mapping[str, str], config: Mapping[str, str]) -> None:
        """Raise `ConfigError` if a digest is not the recorded one; mappings are by name."""
        kept = {
            row.trial or row.member: row.digest for row in read_list(self.configs, ConfigRecord)
        }
        for name, found in digests.items():
            if kept.get(name) != found:
                raise ConfigError(
                    f"{name}: config changed since the {self.kind} started; restore "
                    f"{config[name]}, or start another {self.kind}"
                )

    def check_new(self) -> None:
        """Raise `ConfigError` if the folder for a new study exists."""
        if self.root.exists():
            again = command_line("unstable", self.kind, "--resume", self.root)
            raise ConfigError(f"{self.root} exists; to resume: {again}; else give another --out")

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


class RunJob(Protocol):
    """A run that a child process makes in its own folder; it may start several times."""

    @property
    def root(self) -> Path:
        """Folder of the run."""

    def is_over(self) -> bool:
        """Return whether the run is complete."""

    def words(self) -> list[str]:
        """Return the arguments of `unstable` that start or resume the run."""


class TrainJob(NamedTuple):
    """A run of `unstable train` with `steps` updates; `new` returns the arguments of a new one."""

    folder: RunFolder
    name: str
    steps: int
    new: Callable[[], list[str]]

    @property
    def root(self) -> Path:
        return self.folder.root

    def is_over(self) -> bool:
        return is_over(self.folder, self.steps)

    def words(self) -> list[str]:
        if any(self.folder.state(version).exists() for version in self.folder.versions()):
            return ["train", "--resume", str(self.root)]
        shutil.rmtree(self.root, ignore_errors=True)  # it stopped before its first version
        return [*self.new(), "--name", self.name, "--run_dir", str(self.root)]

    def state(self) -> str:
        """Return "done", "running" or "waiting"."""
        return state_of(self.folder, self.steps)

    def rows(self, skipped: Skipped | None = None) -> list[Row]:
        """Return the run's metrics without damaged rows."""
        return read_rows(self.folder.metrics, skipped)


class Runs(ABC):
    """Runner of child processes; all other state is read from folders.

    `jobs` are the runs by name; the runner calls `changed` when one ends.
    """

    def __init__(
        self,
        folder: StudyFolder,
        jobs: Mapping[str, RunJob],
        shares: Sequence[Share | None],
        changed: Callable[[], None],
    ) -> None:
        self.folder, self._jobs, self._changed = folder, jobs, changed
        self._free = list(shares)
        self._running: dict[str, tuple[Child, Share | None]] = {}
        self._asked: set[str] = set()  # interrupted by `hold`
        self._told: set[str] = set()
        self.done = {name for name, job in jobs.items() if job.is_over()}
        self.failed = set(folder.failures())
        self._signal: int | None = None

    @abstractmethod
    def due(self) -> list[str]:
        """Return runs that may start or resume now, in order; the caller skips running ones."""

    @abstractmethod
    def result(self, name: str) -> str:
        """Return a run's result in a few words."""

    def run(self) -> None:
        """Run the remaining jobs; raises an interrupt's exception once all processes have ended."""
        with handled(self._interrupt):
            try:
                while self._step():
                    time.sleep(LOOK_S)
            finally:
                for child, _ in self._running.values():
                    child.send(signal.SIGTERM)
        if self._signal is not None:
            raise KeyboardInterrupt if self._signal == signal.SIGINT else Terminated

    def hold(self, names: Collection[str]) -> None:
        """Interrupt the named runs if they are running; they can resume later."""
        for name in self._running.keys() & set(names) - self._asked:
            self._asked.add(name)
            self._running[name][0].send(signal.SIGINT)

    def _interrupt(self, received: int, _: object) -> None:
        """Forward a signal to all runs."""
        if self._signal is None:
            name = signal.Signals(received).name
            status(f"{name}: stopping the runs after their updates; a second one kills them")
        self._signal = received
        for child, _share in self._running.values():
            child.send(_passed_on(received))

    def _step(self) -> bool:
        """Collect ended runs and start due ones; return whether anything is left to do."""
        for name in [*self._running]:
            self._collect(name)
        if self._signal is not None:
            return bool(self._running)
        out = self.done | self.failed | self._running.keys()
        ready = [name for name in self.due() if name not in out]
        for name in ready:
            if self._free:
                self._start(name)
        return bool(self._running or ready)

    def _start(self, name: str) -> None:
        job = self._jobs[name]
        if job.root.is_dir():
            try:
                with RunFolder(job.root).held(name):
                    pass
            except ConfigError:
                if name not in self._told:
                    status(f"waiting for {name}, which runs in another process")
                self._told.add(name)
                return
        words = job.words()
        share = self._free.pop(0)
        own = {} if share is None else share.variables
        child = Child(words, self.folder.log(name), () if share is None else share.cores, own)
        self._running[name] = child, share
        if self._signal is not None:  # a signal arrived meanwhile
            child.send(_passed_on(self._signal))
        status(f"{name} {'resumes' if words[1] == '--resume' else 'starts'}")

    def _collect(self, name: str) -> None:
        """Record the result of a run if its process has ended."""
        child, share = self._running[name]
        if (code := child.exit_code) is None:
            return
        del self._running[name]
        self._free.append(share)
        asked = name in self._asked or self._signal is not None
        self._asked.discard(name)
        if self._jobs[name].is_over():
            self.done.add(name)
            status(f"{name} is done: {self.result(name)}")
        elif not (asked and code in IN_ORDER):
            by = f"signal {-code}" if code < 0 else f"exit code {code}"
            line = f"{by}: {last_line(self.folder, name)}"
            self.folder.add_failure(name, line)
            self.failed.add(name)
            status(f"{name} failed, {line}")
        self._changed()


def _passed_on(received: int) -> signal.Signals:
    """Return SIGINT for Ctrl-C, SIGTERM for any other signal."""
    return signal.SIGINT if received == signal.SIGINT else signal.SIGTERM


def is_over(folder: RunFolder, steps: int) -> bool:
    """Return whether a run of `steps` updates is complete, by its status file or newest state."""
    if status_of(folder).get("state") == "ended":
        return True
    version = max(folder.versions(), default=0)
    path = folder.state(version)
    if version < steps or not path.is_file():
        return False
    state = parse(path.read_bytes(), version)
    return state is not None and state.finalized and not state.evaluations


def state_of(folder: RunFolder, steps: int) -> str:
    """Return "done", "running" or "waiting" for a run of `steps` updates."""
    if is_over(folder, steps):
        return "done"
    word = condition_of(folder, status_of(folder), time.time()).word
    return "running" if word == "running" else "waiting"


def last_line(folder: StudyFolder, name: str) -> str:
    """Return the last line that a run has printed, except blank ones."""
    with folder.log(name).open("rb") as file:
        file.seek(max(0, folder.log(name).stat().st_size - _TAIL_BYTES))
        lines = file.read().decode(errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "no output")


def train_words(config: str, fields: Mapping[str, Any]) -> list[str]:
    """Return the arguments of `unstable` that start a run with these fields."""
    options = (word for path, value in fields.items() for word in (f"--{path}", _text(value)))
    return ["train", "--config", config, *options]


def _text(value: Any) -> str:
    """Format a value so that the command line parses it back."""
    if isinstance(value, list | dict):
        return yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()
    return value if isinstance(value, str) and _WORD.fullmatch(value) else json.dumps(value)


def digest(config: Section) -> str:
    """Return the digest of a whole config, to detect changes."""
    return hashlib.blake2b(config.model_dump_json().encode(), digest_size=8).hexdigest()


def runs_at_once(
    wanted: int | Literal["auto"], configs: Mapping[str, RunConfig], machine: Machine, most: int
) -> int:
    """Return the number of concurrent runs; raises `ConfigError` if `wanted` runs do not fit."""
    ready = {name: settle(config) for name, config in configs.items()}
    if wanted == "auto":
        return min(most, most_at_once([*ready.values()], machine, NEEDS))
    for name, config in ready.items():
        try:
            check_at_once(config, machine, wanted, NEEDS)
        except ConfigError as error:
            raise ConfigError(f"{name}: {error}") from None
    return wanted


def parts(machine: Machine, count: int) -> list[Share | None]:
    """Return the shares of `count` runs; None, for a single run, is the whole machine."""
    return [*shares(machine, count, sorted(os.sched_getaffinity(0)))] if count > 1 else [None]


def carry_out(
    make: Callable[[], Runs],
    folder: StudyFolder,
    *,
    size: str,
    show: Callable[[], None],
    retry: bool,
) -> None:
    """Run the remaining jobs of a folder, then show the results.

    Raises `RunFailedError` at the end if any run has failed, and an interrupt's exception.
    """
    again = ("unstable", folder.kind, "--resume", folder.root)
    with RunFolder(folder.root).held(f"FOLDER = {str(folder.root)!r}"):
        if retry:
            folder.forget_failures()
        status(f"{size}, in {folder.root}")
        try:
            make().run()
        except KeyboardInterrupt:
            status(f"to resume: {command_line(*again)}")
            raise
        finally:
            show()
    if failures := folder.failures():
        count = f"{len(failures)} run{'s' * (len(failures) > 1)} failed"
        raise RunFailedError(f"{count}; to retry: {command_line(*again, '--retry')}")
