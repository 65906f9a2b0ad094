"""What the launch decides: where a run goes, and with which adapter it starts."""

import json
from pathlib import Path

import pytest

from unstable import launch
from unstable.config import parse


def shipped(folder: Path, **changes: object) -> Path:
    folder.mkdir()
    config = {"base_model_name_or_path": "smollm2-135m", "r": 16, "lora_alpha": 32, **changes}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("changes", [{"r": 8}, {"base_model_name_or_path": "other"}])
def test_a_shipped_adapter_that_does_not_fit_is_left_and_told_on_stderr(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, object],
) -> None:
    monkeypatch.setattr(launch, "LORA_FOLDER", shipped(tmp_path / "lora_ckpt", **changes))
    assert launch.resolve(parse({})).model.init == "fresh"
    told = capsys.readouterr()
    assert told.out == ""  # `unstable config` prints YAML there
    assert "training starts fresh" in told.err


def test_a_shipped_adapter_that_fits_is_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shipped(tmp_path / "lora_ckpt")
    monkeypatch.setattr(launch, "LORA_FOLDER", folder)
    assert launch.resolve(parse({})).model.init == str(folder)
    assert launch.resolve(parse({"model": {"init": "fresh"}})).model.init == "fresh"


def test_a_run_never_gets_a_folder_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch.time, "strftime", lambda _: "now")
    folders = [launch._make_folder(parse({})).root for _ in range(3)]
    name = "smollm2-135m-TicTacToe-v0-random-now"
    assert [folder.name for folder in folders] == [name, f"{name}-2", f"{name}-3"]
