"""Where a run's files go, as a value: whoever reads or writes a run asks here for the path."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from unstable.types import Purpose


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A run's own folder: RunFolder(Path("out")).checkpoint(12) is out/checkpoints/000012."""

    root: Path

    @property
    def config(self) -> Path:
        """The resolved config."""
        return self.root / "config.yaml"

    @property
    def metrics(self) -> Path:
        """A row an update."""
        return self.root / "metrics.jsonl"

    @property
    def ratings(self) -> Path:
        """The table of ratings."""
        return self.root / "ratings.json"

    @property
    def checkpoints(self) -> Path:
        """A folder for each version."""
        return self.root / "checkpoints"

    def checkpoint(self, version: int) -> Path:
        """Folder of a version: the adapter and, of the newest ones, all that a resume needs."""
        return self.checkpoints / f"{version:06d}"

    def versions(self) -> list[int]:
        """Versions that have a folder, ascending; older ones may hold the adapter alone."""
        if not self.checkpoints.is_dir():
            return []
        return sorted(int(path.name) for path in self.checkpoints.iterdir() if path.name.isdigit())

    def prune(self, newest: int, adapters: set[int], whole: frozenset[int] = frozenset()) -> None:
        """Keep the `newest` checkpoints and those in `whole`, and the adapters of `adapters`.

        The rest is deleted.
        """
        for version in self.versions()[:-newest]:
            if version in whole:
                continue
            folder = self.checkpoint(version)
            if version not in adapters:
                shutil.rmtree(folder)
                continue
            for path in folder.iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                elif not path.name.startswith("adapter_"):
                    path.unlink()

    @property
    def adapter(self) -> Path:
        """What supervised training ends with."""
        return self.root / "adapter"

    @property
    def examples(self) -> Path:
        """What supervised fine-tuning trains on."""
        return self.root / "examples.jsonl"

    @property
    def train(self) -> Path:
        """Samples as trained, a file an update."""
        return self.root / "train"

    def samples(self, update: int) -> Path:
        """The samples as trained in update `update`."""
        return self.train / f"{update:06d}.jsonl"

    def games(self, purpose: Purpose, version: int) -> Path:
        """Games that were recorded while `version` was the current one."""
        return self.root / "games" / f"{purpose}-{version:06d}.jsonl"

    @property
    def blocking_games(self) -> set[str]:
        """Names of games that have blocked an actor; they are played in processes of their own."""
        path = self._blocking_games
        return set(path.read_text(encoding="utf-8").splitlines()) if path.is_file() else set()

    def add_blocking_game(self, name: str) -> None:
        """Remember one, for actors that are started later."""
        with self._blocking_games.open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")

    @property
    def _blocking_games(self) -> Path:
        return self.root / "blocking_games.txt"

    def endpoint(self, opponent: str) -> Path:
        """Where an endpoint's calls and tokens are counted, if they are capped."""
        return self.root / "endpoints" / f"{quote(opponent, safe='')}.json"

    def log(self, component: str) -> Path:
        """Log file of a component: loop, learner, actor-0, ..."""
        return self.root / "logs" / f"{component}.log"
