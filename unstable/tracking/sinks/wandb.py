"""Weights & Biases."""

from unstable.config import ConfigError, RunConfig
from unstable.records.folder import RunFolder
from unstable.tracking.sinks.base import Row, Sink


class WandbRun(Sink):
    """One Weights & Biases run, which a resumed run continues; raises `ConfigError` at the start.

    `WANDB_MODE=offline` keeps it in the run's folder, to be synced by hand.
    """

    name = "Weights & Biases"

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        import wandb

        # Run folders are named by mode, time and id, the id last; a resume finds it there.
        former = sorted((folder.root / "wandb").glob("*run-*-*"))
        try:
            self._run = wandb.init(
                project=config.tracking.wandb,
                name=folder.root.name,
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

    def row(self, row: Row) -> None:
        """Log what has a value."""
        self._run.log({name: value for name, value in row.items() if value is not None})

    def close(self) -> None:
        """End the run there."""
        self._run.finish()
