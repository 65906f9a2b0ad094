"""Weights & Biases."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from unstable.config import ConfigError, RunConfig
from unstable.records.folder import RunFolder
from unstable.records.games import Record
from unstable.tracking.sinks.base import Row, Sink
from unstable.tracking.sinks.samples import SampleGame, SampleGames
from unstable.types import EvalScore

GAMES_TABLE = "eval/games"
FINISH_S = 60.0
"""Seconds that a run's end may wait for a server that is slow or gone."""


class WandbRun(Sink):
    """One Weights & Biases run, which a resumed run continues; raises `ConfigError` at the start.

    Rows go there, of each evaluation a table of sample games, and at the end the report as an
    artifact. `WANDB_MODE=offline` keeps it in the run's folder, to be synced by hand.
    """

    name = "Weights & Biases"

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        import wandb

        # Run folders are named by mode, time and id, the id last; a resume finds it there.
        former = sorted((folder.root / "wandb").glob("*run-*-*"))
        try:
            self._run = wandb.init(
                project=config.tracking.wandb,
                name=config.tracking.name or folder.root.name,
                tags=config.tracking.tags,
                dir=folder.root,
                config=config.model_dump(mode="json"),
                id=former[-1].name.rpartition("-")[2] if former else None,
                resume="allow",
                settings=wandb.Settings(silent=True, console="off"),
            )
        except wandb.errors.Error as error:
            raise ConfigError(
                f"tracking.wandb = {config.tracking.wandb!r}: {' '.join(str(error).split())}; "
                "run `wandb login`, set WANDB_MODE=offline, or leave tracking.wandb out"
            ) from None
        self._run.define_metric("*", step_metric="version")
        self.url = None if self._run.offline else self._run.url
        self._games = SampleGames()
        self._tables: dict[str, Any] = {}

    def game(self, version: int, record: Record) -> None:
        """Keep a game of an evaluation until that is over."""
        self._games.add(version, record)

    def evaluation(self, version: int, scores: Sequence[EvalScore]) -> None:
        """Have sample games in the next row."""
        import wandb

        games = [list(game) for game in self._games.take(version)]
        table = wandb.Table(columns=list(SampleGame._fields), data=games)
        self._tables = {GAMES_TABLE: table}

    def row(self, row: Row) -> None:
        """Log what has a value."""
        values = {name: value for name, value in row.items() if value is not None}
        tables, self._tables = self._tables, {}
        self._run.log(values | tables)

    def end(self, reason: str, report: Path | None) -> None:
        """Log the report."""
        import wandb

        self._run.summary["reason"] = reason
        if report is not None:
            artifact = wandb.Artifact(f"report-{self._run.id}", type="report")
            # As it lies there: a copy would outlive the run's folder in the user's own.
            artifact.add_file(str(report), policy="immutable", skip_cache=True)
            self._run.log_artifact(artifact)

    def close(self) -> None:
        """End the run there, and its process; raises `TimeoutError` where that takes too long."""
        problems: list[Exception] = []

        def finish() -> None:
            import wandb

            for end in (self._run.finish, wandb.teardown):
                try:
                    end()
                except Exception as error:  # a process that is gone; the other call is made too
                    problems.append(error)

        thread = threading.Thread(target=finish, daemon=True)
        thread.start()
        thread.join(FINISH_S)
        if thread.is_alive():  # its process has to go, or Python's own end would wait for it
            for child in psutil.Process().children():
                if child.name() == "wandb-core":
                    child.kill()
            thread.join(FINISH_S)
            raise TimeoutError(f"not done in {FINISH_S:g} s; see `wandb sync` for what is left")
        if problems:
            raise problems[0]
