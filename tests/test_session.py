"""What surrounds a run: where its folder goes, and when a mistake takes it along."""

from pathlib import Path
from typing import Any

import pytest

from unstable.config import ConfigError, RunConfig, parse
from unstable.planning.plan import Plan
from unstable.records.folder import RunFolder
from unstable.runtime import session, train


def test_a_run_never_gets_a_folder_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session.time, "strftime", lambda _: "now")
    folders = [session.make_folder(parse({})).root for _ in range(3)]
    name = "smollm2-135m-TicTacToe-v0-random-now"
    assert [folder.name for folder in folders] == [name, f"{name}-2", f"{name}-3"]


@pytest.mark.parametrize("versions", [0, 1])
def test_a_mistake_takes_the_folder_along_only_while_it_holds_no_version(
    versions: int, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def mistaken(config: RunConfig, plan: Plan, folder: RunFolder, *_: Any) -> str:
        for version in range(versions):
            folder.checkpoint(version).mkdir(parents=True)
        raise ConfigError("an opponent's file is not there")

    monkeypatch.setattr(train, "_train", mistaken)
    monkeypatch.setattr(train, "setup_logging", lambda *_: None)
    run_dir = tmp_path / "run"
    data = {"model": {"name": str(tiny_folder)}, "tracking": {"run_dir": str(run_dir)}}
    with pytest.raises(ConfigError, match="an opponent's file"):
        train.train(parse(data))
    assert RunFolder(run_dir).versions() == list(range(versions))
    assert run_dir.exists() == (versions > 0)
