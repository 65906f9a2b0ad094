"""What the launch decides: where a run goes."""

from pathlib import Path

import pytest

from unstable import launch
from unstable.config import parse


def test_a_run_never_gets_a_folder_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch.time, "strftime", lambda _: "now")
    folders = [launch.make_folder(parse({})).root for _ in range(3)]
    name = "smollm2-135m-TicTacToe-v0-random-now"
    assert [folder.name for folder in folders] == [name, f"{name}-2", f"{name}-3"]
