"""The hub's weights are downloaded once, in a child process, with progress and one-line errors."""

import json
import sys
from pathlib import Path

import pytest

from tests.helpers.mistakes import line_of
from tests.helpers.rows import every_row
from unstable.config import ConfigError, ModelConfig
from unstable.models import weights
from unstable.models.weights import ready_weights

NAME = "someone/a-model"
CHILD = """
import json, pathlib, sys, time
blobs = pathlib.Path({cache!r}, "blobs")
print(json.dumps({{"bytes": 3_000_000, "cache": {cache!r}}}), flush=True)
blobs.mkdir(parents=True)
for number in range(3):
    (blobs / f"{{number}}.incomplete").write_bytes(bytes(1_000_000))
    time.sleep(0.05)
{then}
"""


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cached weights, and short polling intervals."""
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda *_: None)
    monkeypatch.setattr(weights, "_EVERY_S", 0.01)


def child(tmp_path: Path, then: str = "") -> list[str]:
    return [sys.executable, "-c", CHILD.format(cache=str(tmp_path / "models--x"), then=then)]


def test_download_reports_progress(tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    ready_weights(ModelConfig(name=NAME), lambda *what: told.append(what), child(tmp_path))
    assert {name for name, *_ in told} == {f"downloading {NAME} (MB)"}
    done = [each for _, each, _ in told]
    assert done == sorted(done) and {total for *_, total in told} == {3}


def test_download_failure_is_one_line(tmp_path: Path) -> None:
    command = child(tmp_path, "sys.exit('401 Client Error: it is gated')")
    error = line_of(ready_weights, ModelConfig(name=NAME), lambda *_: None, command)
    said = (
        f"model.name = '{NAME}': its weights cannot be downloaded (401 Client Error: it is gated); "
    )
    assert error.startswith(said)


def test_full_disk_is_one_line_before_the_download(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 1_000_000})
    monkeypatch.setattr(weights.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(ConfigError, match="need 0.5 GB, but 0.0 GB are free in .* set HF_HOME"):
        ready_weights(ModelConfig(name=NAME), lambda *_: None, child(tmp_path, "time.sleep(600)"))


def test_interrupt_ends_the_download(tmp_path: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ready_weights(ModelConfig(name=NAME), interrupt, child(tmp_path, "time.sleep(600)"))


@every_row(
    "there, cached",
    (["model.safetensors"], True),
    (["model.safetensors.index.json", "a.safetensors", "b.safetensors"], True),
    (["model.safetensors.index.json", "a.safetensors"], False),
    (["pytorch_model.bin"], True),
    (["config.json"], False),
)
def test_cached_weights_are_not_downloaded(there, cached, tmp_path, monkeypatch):
    for name in there:
        shards = {"one": "a.safetensors", "two": "b.safetensors"}
        (tmp_path / name).write_text(json.dumps({"weight_map": shards}))

    def load(name: str, file: str) -> str | None:
        assert name == NAME
        return str(tmp_path / file) if (tmp_path / file).is_file() else None

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", load)
    assert weights._are_cached(NAME) == cached
    if cached:
        ready_weights(ModelConfig(name=NAME), lambda *_: None, ["/nowhere"])


def test_local_models_need_no_hub(tiny_folder: Path) -> None:
    for name in (str(tiny_folder), "tiny"):
        ready_weights(ModelConfig(name=name), lambda *_: None, ["/nowhere"])
