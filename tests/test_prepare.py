"""What the launch decides: where a run goes."""

from pathlib import Path
from typing import Any

import pytest

from tests.machine_helpers import machine
from unstable.runtime import train as launch
from unstable.config import ConfigError, RunConfig, parse
from unstable.records.folder import RunFolder


def test_a_run_never_gets_a_folder_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch.time, "strftime", lambda _: "now")
    folders = [launch.make_folder(parse({})).root for _ in range(3)]
    name = "smollm2-135m-TicTacToe-v0-random-now"
    assert [folder.name for folder in folders] == [name, f"{name}-2", f"{name}-3"]


@pytest.mark.parametrize("versions", [0, 1])
def test_a_mistake_takes_the_folder_along_only_while_it_holds_no_version(
    versions: int, tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def mistaken(config: RunConfig, folder: RunFolder, *_: Any) -> str:
        for version in range(versions):
            folder.checkpoint(version).mkdir(parents=True)
        raise ConfigError("an opponent's file is not there")

    monkeypatch.setattr(launch, "_train", mistaken)
    monkeypatch.setattr(launch, "setup_logging", lambda *_: None)
    run_dir = tmp_path / "run"
    data = {"model": {"name": str(tiny_folder)}, "tracking": {"run_dir": str(run_dir)}}
    with pytest.raises(ConfigError, match="an opponent's file"):
        launch.train(parse(data))
    assert RunFolder(run_dir).versions() == list(range(versions))
    assert run_dir.exists() == (versions > 0)


def test_a_run_of_many_cards_is_judged_on_one(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    data = {
        "model": {"name": str(tiny_folder), "dtype": "bfloat16", "init": "fresh"},
        "actors": {"num": 6, "engine": "vllm", "gpu_memory": 0.9, "share_gpu": "off"},
        "learner": {"num": 2, "micro_batch_tokens": 10**9},
        "tracking": {"run_dir": str(run_dir)},
    }
    launch.make_folder(parse(data)).checkpoint(3).mkdir(parents=True)
    judged: list[tuple[str, Any]] = []

    async def judge(config: RunConfig, folder: RunFolder, version: int, places: Any) -> list[Any]:
        judged.append((config.actors.engine, places))
        return []

    monkeypatch.setattr(launch, "_evaluate", judge)
    monkeypatch.setattr(launch, "setup_logging", lambda *_: None)
    for here in (machine(1), machine()):
        monkeypatch.setattr(launch, "this_machine", lambda here=here: here)
        launch.evaluate(run_dir, None, {})
    assert judged == [("vllm", (("0",),)), ("embedded", ((),) * 8)]


@pytest.mark.parametrize("algorithm", [{"name": "nowhere:Mine"}, {"target": "nowhere:Mine"}])
def test_an_algorithm_that_is_not_there_is_told_before_a_model_is_loaded(algorithm: dict) -> None:
    with pytest.raises(ConfigError, match=r"^learner.algorithm.(name|target) = 'nowhere:Mine'"):
        launch.check(parse({"learner": {"algorithm": algorithm}}))
