"""Sink that writes to MLflow: `tracking.sinks: mlflow`."""

import logging
import os
import re
import time
from pathlib import Path
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException

from unstable.config import ConfigError, RunConfig
from unstable.records.folder import RunFolder
from unstable.records.reading import read_rows
from unstable.tracking.sinks.base import Row, Sink

EXPERIMENT = "MLFLOW_EXPERIMENT_NAME"
FOLDER = "run_dir"
"""Tag by which a resumed run finds its own."""
_REFUSED = re.compile(r"[^\w\-. :/]")  # characters that MLflow's names cannot have


class MlflowRun(Sink):
    """Run at `MLFLOW_TRACKING_URI`, which a resumed run continues.

    It receives every metric by version, the config as parameters, and at the end the report as an
    artifact. `MLFLOW_EXPERIMENT_NAME` names the experiment (default: unstable).
    """

    name = "MLflow"

    def __init__(self, config: RunConfig, folder: RunFolder) -> None:
        logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # else on the screen
        self._sent: Any = None  # the last rows on their way
        try:
            self._client = MlflowClient()
            self._id = self._open(os.environ.get(EXPERIMENT, "unstable"), config, folder)
        except MlflowException as error:
            raise ConfigError(
                f"tracking.sinks = mlflow: {' '.join(str(error).split())[:300]}; set "
                "MLFLOW_TRACKING_URI to a server or to sqlite:///FILE"
            ) from None

    def _open(self, experiment: str, config: RunConfig, folder: RunFolder) -> str:
        """Return the id of the folder's run; makes the experiment and the run if they are new."""
        client, place = self._client, str(folder.root.absolute())
        found = client.get_experiment_by_name(experiment)
        number = client.create_experiment(experiment) if found is None else found.experiment_id
        quote = '"' if "'" in place else "'"
        asked = f"tags.`{FOLDER}` = {quote}{place}{quote}"
        resumes = bool(read_rows(folder.metrics))
        if resumes and (known := client.search_runs([number], asked, max_results=1)):
            client.update_run(known[0].info.run_id, "RUNNING")
            return str(known[0].info.run_id)
        tags = {FOLDER: place, **dict.fromkeys(config.tracking.tags, "")}
        name = config.tracking.name or folder.root.name
        run = client.create_run(number, tags=tags, run_name=name).info.run_id
        params = [Param(*each) for each in _leaves("", config.model_dump(mode="json"))]
        client.log_batch(run, params=params)
        return str(run)

    def row(self, row: Row) -> None:
        """Log all metrics that have a value."""
        given = {name: value for name, value in row.items() if value is not None}
        version, now = int(given.pop("version")), int(1000 * given.pop("time", time.time()))
        metrics = [
            Metric(_REFUSED.sub("_", name), float(value), now, version)
            for name, value in given.items()
        ]
        self._sent = self._client.log_batch(self._id, metrics=metrics, synchronous=False)

    def end(self, reason: str, report: Path | None) -> None:
        """Log the reason and the report."""
        self._client.set_tag(self._id, "reason", reason)
        if report is not None:
            self._client.log_artifact(self._id, str(report))

    def close(self) -> None:
        """Wait for what is not yet sent, and end the run."""
        if self._sent is not None:
            self._sent.wait()
        self._client.set_terminated(self._id)


def _leaves(path: str, value: Any) -> list[tuple[str, str]]:
    """Return the fields of a config with their values, as `section.field`."""
    if not isinstance(value, dict):
        return [(path, str(value))]
    parts = (_leaves(f"{path}.{name}".lstrip("."), each) for name, each in value.items())
    return [leaf for part in parts for leaf in part]
