"""Paths of a run's files, as a value from which readers and writers of a run get them."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast, get_args
from urllib.parse import quote

from filelock import FileLock, Timeout

from unstable.config import ConfigError
from unstable.records.files import cut
from unstable.types import MAIN, PlayerId, Purpose


class GameFile(NamedTuple):
    """File of recorded games: GameFile("eval", 12, Path("out/games/eval-000012.jsonl"))"""

    purpose: Purpose
    version: int  # newest version when the games were played
    path: Path


_WEIGHTS = ("adapter_", "model.")
"""Prefixes of the files of a version's weights."""


class _File:
    """Path in a run's folder, as an attribute of the folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: "RunFolder", _: type) -> Path:
        return folder.root / self._name


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Folder of a run: RunFolder(Path("out")).checkpoint(12) is out/checkpoints/000012."""

    root: Path

    config = _File("config.yaml")
    """Resolved config."""
    environment = _File("environment.json")
    """Command that began the run, and versions of packages."""
    report = _File("report.html")
    """Report of the run as an HTML page."""
    tournament = _File("tournament.json")
    """Design and results of a tournament."""
    tensorboard = _File("tensorboard")
    """Events for TensorBoard, if the config requests them."""
    offline = _File("offline.json")
    """Recorded games that a run without playing trains on."""
    metrics = _File("metrics.jsonl")
    """Metrics, one row per update."""
    ratings = _File("ratings.json")
    """Table of ratings."""
    status = _File("state.json")
    """Current state of the run, replaced once per second while it runs."""
    checkpoints = _File("checkpoints")
    """Folder with one folder per version."""
    adapter = _File("adapter")
    """Result of supervised training."""
    examples = _File("examples.jsonl")
    """Examples of supervised fine-tuning."""
    train = _File("train")
    """Samples as trained, one file per update."""
    best = _File("checkpoints/best")
    """Link to the folder of the version that was best in evaluation."""
    _blocking_games = _File("blocking_games.txt")

    def versions_of(self, policy: str) -> Path:
        """Return the folder of a policy's versions: `checkpoints/`, or a subfolder for others."""
        return self.checkpoints if policy == MAIN else self.checkpoints / policy

    def checkpoint(self, version: int, policy: str = MAIN) -> Path:
        """Return a version's folder: the adapter and, for the newest, all that a resume needs."""
        return self.versions_of(policy) / f"{version:06d}"

    def name_best(self, version: int | None) -> None:
        """Link `best` to a version; None does nothing."""
        if version is None:
            return
        draft = self.checkpoints / ".best.tmp"
        draft.unlink(missing_ok=True)
        if not self.best.is_symlink():  # copied runs may have a folder
            shutil.rmtree(self.best, ignore_errors=True)
        draft.symlink_to(self.checkpoint(version).name)
        draft.replace(self.best)

    @property
    def best_version(self) -> int | None:
        """Version that `best` links to; None if the link or its target is missing."""
        name = self.best.resolve().name if self.best.is_dir() else ""
        return int(name) if name.isdigit() else None

    def state(self, version: int) -> Path:
        """Return the file of the run's state at a version, without the learner's state."""
        return self.checkpoint(version) / "run_state.json"

    def versions(self, policy: str = MAIN) -> list[int]:
        """Return versions that have a folder, ascending; older ones may only hold the weights."""
        place = self.versions_of(policy)
        paths = place.iterdir() if place.is_dir() else ()
        return sorted(int(path.name) for path in paths if path.name.isdigit())

    def prune(
        self,
        newest: int,
        adapters: Set[PlayerId],
        whole: Set[PlayerId] = frozenset(),
        policy: str = MAIN,
    ) -> None:
        """Delete a policy's checkpoints except the `newest` ones and those in `whole`.

        Only the weights are kept of versions in `adapters`.
        """
        for version in self.versions(policy)[:-newest]:
            player = PlayerId.policy(version, policy)
            if player in whole:
                continue
            folder = self.checkpoint(version, policy)
            if player not in adapters:
                shutil.rmtree(folder)
                continue
            for path in folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                elif not path.name.startswith(_WEIGHTS):
                    path.unlink()

    def export(self, version: int, *, merged: bool) -> Path:
        """Return the default folder of an exported version."""
        return self.root / "exports" / f"{version:06d}-{'merged' if merged else 'adapter'}"

    def samples(self, update: int) -> Path:
        """Return the file of the samples of an update."""
        return self.train / f"{update:06d}.jsonl"

    def games(self, purpose: Purpose, version: int) -> Path:
        """Return the file of games that were recorded while `version` was current."""
        return self.root / "games" / f"{purpose}-{version:06d}.jsonl"

    def policies(self, version: int) -> Path:
        """Return the file of a measured version's exact policies in small games."""
        return self.root / "policies" / f"{version:06d}.json"

    def measured(self) -> list[int]:
        """Return the versions that have a file of policies, ascending."""
        return sorted(map(_number, (self.root / "policies").glob("[0-9]*.json")))

    def relative(self, path: Path) -> str:
        """Return a file's path relative to the folder."""
        return path.relative_to(self.root).as_posix()

    def marks(self, version: int) -> dict[str, int]:
        """Return sizes in bytes, by name, of the files that grow while `version` is current."""
        growing = (self.metrics, self.games("train", version), self.games("eval", version))
        sizes = {path: path.stat().st_size if path.exists() else 0 for path in growing}
        return {self.relative(path): size for path, size in sizes.items()}

    def check_links(self) -> None:
        """Raise `ConfigError` for a link that leads out of the folder: writes would follow it.

        W&B's folder is not checked: its links lead to its own cache.
        """
        root = self.root.resolve()
        for place, folders, files in os.walk(self.root):
            for path in (Path(place) / name for name in (*folders, *files)):
                if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(root):
                    raise ConfigError(
                        f"{path}: symbolic link out of the run's folder; replace it with a file or "
                        "folder"
                    )
            folders[:] = [name for name in folders if Path(place) / name != self.root / "wandb"]

    @contextlib.contextmanager
    def held(self, place: str) -> Iterator[None]:
        """Lock the run against writes by other processes; raises `ConfigError` if another holds it.

        `place` is the name of the folder in messages.
        """
        try:
            lock = FileLock(self.root / ".lock").acquire(timeout=0)
        except Timeout:
            raise ConfigError(
                f"{place}: another process is using the run; stop that process first"
            ) from None
        with lock:
            yield

    def rewind(self, version: int, marks: Mapping[str, int], aside: Path | None = None) -> None:
        """Cut files back to `marks`, and remove files of later versions.

        With `aside`, a folder that does not exist yet, all removed content is moved there. Only the
        names that `RunFolder.marks` returns count in `marks`: they are read from a file, which may
        name any other.
        """
        for name in self.marks(version).keys() & marks.keys():
            path, end = self.root / name, marks[name]
            if aside is not None and path.exists() and path.stat().st_size > end:
                kept = aside / name
                kept.parent.mkdir(parents=True, exist_ok=True)
                kept.write_bytes(path.read_bytes()[end:])
            cut(path, end)
        later = [
            *(path for path in (self.root / "games").glob("*-*.jsonl") if _number(path) > version),
            *(path for path in self.train.glob("*.jsonl") if _number(path) > version),
            *(self.policies(number) for number in self.measured() if number > version),
        ]
        later += [self.checkpoint(each) for each in self.versions() if each > version]
        for path in later:
            if aside is not None:
                kept = aside / path.relative_to(self.root)
                kept.parent.mkdir(parents=True, exist_ok=True)
                path.rename(kept)
            elif path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        if self.best.is_symlink() and not self.best.is_dir():
            self.best.unlink()

    def game_files(self) -> list[GameFile]:
        """Return the existing files of games, by version, evaluation before training."""
        found = []
        for path in self.root.glob("games/*-*.jsonl"):
            purpose, _, version = path.stem.partition("-")
            if purpose in get_args(Purpose) and version.isdecimal():
                found.append(GameFile(cast(Purpose, purpose), int(version), path))
        return sorted(found, key=lambda file: (file.version, file.purpose))

    def sample_files(self) -> list[tuple[int, Path]]:
        """Return pairs of update and existing file of samples, ascending."""
        paths = (path for path in self.train.glob("*.jsonl") if path.stem.isdecimal())
        return sorted((int(path.stem), path) for path in paths)

    @property
    def blocking_games(self) -> set[str]:
        """Names of games that have blocked an actor; separate processes play such games."""
        path = self._blocking_games
        return set(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else set()

    def add_blocking_game(self, name: str) -> None:
        """Record a game that blocked an actor, for actors that start later."""
        with self._blocking_games.open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")

    def endpoint(self, opponent: str) -> Path:
        """Return the file that counts an endpoint's calls and tokens, if they are capped."""
        return self.root / "endpoints" / f"{quote(opponent, safe='')}.json"

    def answers(self, term: str) -> Path:
        """Return the file of a reward term's answers, with `cache: run`."""
        return self.root / "judged" / f"{quote(term, safe='')}.cache.jsonl"

    def judged(self, name: str) -> Path:
        """Return the file of rewards that `unstable judge` computed for recorded games."""
        return self.root / "judged" / f"{quote(name, safe='')}.jsonl"

    def log(self, component: str) -> Path:
        """Return the log file of a component: loop, learner, actor-0, ..."""
        return self.root / "logs" / f"{component}.log"


def existing_run(path: Path) -> RunFolder:
    """Return the folder of a run; raises `ConfigError` for a folder that holds none."""
    folder = RunFolder(path)
    if not folder.config.is_file():
        raise ConfigError(f"RUN_DIR = {str(path)!r}: contains no config.yaml; give a run folder")
    if not folder.config.read_bytes().strip():
        raise ConfigError(f"{folder.config}: is empty; restore the run's config.yaml")
    return folder


def _number(path: Path) -> int:
    """Return the version in a file's name."""
    return int(path.stem.rpartition("-")[2])
