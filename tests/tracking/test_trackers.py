"""Sinks of contrib: real trackio and MLflow, in a folder each."""

from pathlib import Path

import pytest

from tests.helpers.mistakes import refused
from tests.helpers.tracking import make_config, make_score, make_tracker, run_updates
from unstable.tracking.sinks import check_sinks, own_sinks

SCORE = "eval/TicTacToe-v0/random/sampled/score"


def tracked(root: Path, sink: str) -> None:
    """Track a run of two updates, and one more update after a resume."""
    config = make_config(tracking={"dashboard": "off", "sinks": sink, "name": "mine"})
    check_sinks(config)
    tracker = run_updates(make_tracker(root, config, sinks=own_sinks(config)))
    tracker.close()
    resumed = make_tracker(root, config, sinks=own_sinks(config))
    resumed.log_evaluation([make_score(3, score=0.75)])
    resumed.end_update(3)
    resumed.close()


def test_trackio_has_each_row_of_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    trackio = pytest.importorskip("trackio")
    sqlite_storage = pytest.importorskip("trackio.sqlite_storage")
    folder = tmp_path / "trackio"
    for module in (trackio, sqlite_storage, trackio.utils):
        monkeypatch.setattr(module, "TRACKIO_DIR", folder, raising=False)
    tracked(tmp_path / "run", "trackio")
    logs = sqlite_storage.SQLiteStorage.get_logs("unstable", "mine")
    found = [(row["step"], row[SCORE]) for row in logs if SCORE in row]
    assert found == [(0, 0.5), (1, 0.6), (2, 0.6), (3, 0.75)]
    assert "Trackio" not in capfd.readouterr().out


def test_mlflow_has_each_row_of_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'store.db'}")
    tracked(tmp_path / "run's", "mlflow")
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("unstable").experiment_id])
    history = client.get_metric_history(run.info.run_id, SCORE)
    assert [(each.step, each.value) for each in history] == [
        (0, 0.5),
        (1, 0.6),
        (2, 0.6),
        (3, 0.75),
    ]
    assert run.info.status == "FINISHED" and run.info.run_name == "mine"
    assert run.data.params["learner.batch_size"] == str(make_config().learner.batch_size)


def test_store_that_cannot_be_opened_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    refused("^tracking.sinks = mlflow: .*; set MLFLOW_TRACKING_URI to", tracked, tmp_path, "mlflow")
