"""The zip of an adapter: whole, bounded, and used only with the base that it was made for."""

import json
import os
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file, save_file

from tests.helpers.mistakes import line_of, refused
from tests.helpers.models import random_adapter, tiny_model
from unstable.cli import SHORT_FORMS, parse_options
from unstable.commands import prepare as preparing
from unstable.commands.prepare import prepare
from unstable.config import AdapterConfig, ModelConfig, parse
from unstable.models import archive
from unstable.models.adapters import read_adapter
from unstable.models.archive import (
    MEMBERS,
    describe_base,
    fingerprint,
    made_for,
    misfit,
    pack_adapter,
    unpack,
    unpack_newer,
)
from unstable.models.hub import cache_folder
from unstable.records.files import one_process
from unstable.types import Adapter

LORA = AdapterConfig(rank=4, alpha=8)


@pytest.fixture
def adapter() -> Adapter:
    return random_adapter(tiny_model(), "warm", seed=1)


@pytest.fixture
def model(tiny_folder: Path) -> ModelConfig:
    return ModelConfig(name=str(tiny_folder), dtype="float32", adapter=LORA)


def packed(adapter: Adapter, path: Path, model: ModelConfig, card: str = "# how") -> Path:
    pack_adapter(adapter, path, base=describe_base(model, ["TicTacToe-v0"]), card=card)
    return path


def test_zip_round_trips(adapter, model, tmp_path):
    unpack(packed(adapter, tmp_path / "a.zip", model), tmp_path / "lora")
    again = read_adapter(tmp_path / "lora", "again")
    before, after = load(adapter.weights), load(again.weights)
    assert before.keys() == after.keys()
    for name, tensor in after.items():
        assert torch.equal(tensor, before[name].to(torch.bfloat16))
    assert again.config == adapter.config
    assert (tmp_path / "lora/README.md").read_text() == "# how"
    assert misfit(tmp_path / "lora", model) is None


def test_zip_bytes_are_deterministic(adapter, model, tmp_path, monkeypatch):
    one = packed(adapter, tmp_path / "one.zip", model).read_bytes()
    monkeypatch.setattr("time.time", lambda: 2e9)
    assert packed(adapter, tmp_path / "two.zip", model).read_bytes() == one
    assert packed(adapter, tmp_path / "two.zip", model, card="# other").read_bytes() != one
    assert not list(tmp_path.glob(".*"))


def test_fingerprint_is_independent_of_files(tiny_folder, tmp_path):
    def of(folder: Path) -> str:
        return fingerprint(ModelConfig(name=str(folder)))

    tiny_model().save_pretrained(tmp_path / "shards", max_shard_size="20kB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    assert of(tmp_path / "shards") == of(tiny_folder)
    tensors = load_file(tiny_folder / "model.safetensors")
    changed = tmp_path / "changed"
    changed.mkdir()
    (changed / "config.json").write_text((tiny_folder / "config.json").read_text())
    save_file(tensors, changed / "model.safetensors", metadata={"format": "pt", "by": "me"})
    assert of(changed) == of(tiny_folder)
    tensors["model.norm.weight"][0] += 1
    save_file(tensors, changed / "model.safetensors", metadata={"format": "pt"})
    assert of(changed) != of(tiny_folder)


def test_base_without_safetensors_is_rejected(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    refused("no model.safetensors, which identifies", fingerprint, ModelConfig(name=str(tmp_path)))


def write(path: Path, members: list[tuple[str, bytes]], mode: int = 0o600) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target:
        for name, content in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            target.writestr(info, content, zipfile.ZIP_DEFLATED)
    return path


WHOLE = [(name, b"{}") for name in MEMBERS]


@pytest.mark.parametrize(
    "members, words",
    [
        ([*WHOLE, ("../outside", b"")], "contains '../outside'; expected"),
        ([*WHOLE, ("/tmp/outside", b"")], "contains '/tmp/outside'; expected"),
        ([*WHOLE, ("folder/base.json", b"")], "contains 'folder/base.json'; expected"),
        ([*WHOLE, ("run.sh", b"")], "contains 'run.sh'; expected"),
        (WHOLE[1:], "has no adapter_model.safetensors"),
        ([*WHOLE, WHOLE[0]], "contains adapter_model.safetensors twice"),
        ([*WHOLE[:3], ("README.md", bytes(3 * 2**20))], "unpacks to 3 MiB, limit 1"),
    ],
    ids=["parent", "absolute", "folder", "other", "lacking", "twice", "bomb"],
)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_hostile_zip_is_rejected_in_one_line(members, words, tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_BYTES", 2**20)
    refused_zip(write(tmp_path / "a.zip", members), words, tmp_path)


def refused_zip(path: Path, words: str, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir(exist_ok=True)
    said = line_of(unpack, path, inside / "lora")
    assert words in said
    assert said.startswith(f"{path}: ")
    assert list(inside.iterdir()) == []
    assert {each.name for each in tmp_path.iterdir()} == {"inside", "a.zip"}


def test_links_false_sizes_and_other_files_are_rejected(tmp_path):
    path = write(tmp_path / "a.zip", WHOLE, mode=stat.S_IFLNK | 0o777)
    refused_zip(path, "its adapter_model.safetensors is a link", tmp_path)
    path = write(tmp_path / "a.zip", [*WHOLE[:3], ("README.md", bytes(1000))])
    path.write_bytes(path.read_bytes().replace((1000).to_bytes(4, "little"), bytes([9, 0, 0, 0])))
    refused_zip(path, "cannot be unpacked (Bad CRC-32", tmp_path)
    path = tmp_path / "a.zip"
    path.write_bytes(b"not a zip")
    refused_zip(path, "cannot be unpacked (File is not a zip file)", tmp_path)


def test_zip_is_unpacked_again_only_if_newer(adapter, model, tmp_path):
    folder = tmp_path / "lora"
    unpack_newer(tmp_path / "a.zip", folder)
    assert not folder.exists()
    path = packed(adapter, tmp_path / "a.zip", model)
    unpack_newer(path, folder)
    (folder / "mine").touch()
    unpack_newer(path, folder)
    assert (folder / "mine").exists()
    packed(adapter, path, model, card="# newer")
    later = (folder / "base.json").stat().st_mtime + 1
    os.utime(path, (later, later))
    unpack_newer(path, folder)
    assert (folder / "README.md").read_text() == "# newer"
    assert sorted(each.name for each in folder.iterdir()) == sorted(MEMBERS)


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"name": "other"}, "it was made for other, not"),
        ({"fingerprint": "0"}, "it was made for other weights of"),
        (
            {"adapter": {"rank": 8, "alpha": 8, "targets": "all-linear"}},
            "its LoRA has alpha 8, rank 8, targets all-linear, not alpha 8, rank 4, targets",
        ),
    ],
)
def test_mismatched_base_is_reported(changes, words, adapter, model, tmp_path, monkeypatch, capsys):
    base = describe_base(model, ["TicTacToe-v0"]) | changes
    pack_adapter(adapter, tmp_path / "lora_ckpt.zip", base=base, card="")
    monkeypatch.setattr(preparing, "LORA_FOLDER", tmp_path / "lora_ckpt")
    assert prepare(parse({"model": model.model_dump()})).config.model.init == "fresh"
    printed = capsys.readouterr()
    assert printed.out == ""  # `unstable config` prints YAML there
    assert words in printed.err and "training starts with a fresh adapter" in printed.err
    assert len(printed.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("games", "is_used"),
    [(["TicTacToe-v0"], True), (["Nim-v0", "TicTacToe-v0"], True), (["Nim-v0"], False)],
)
def test_start_is_used_only_for_its_games(games, is_used, adapter, model, tmp_path, monkeypatch):
    packed(adapter, tmp_path / "lora_ckpt.zip", model)
    monkeypatch.setattr(preparing, "LORA_FOLDER", tmp_path / "lora_ckpt")
    config = parse({"model": model.model_dump(), "games": [{"env": env} for env in games]})
    start = str(tmp_path / "lora_ckpt") if is_used else "fresh"
    assert prepare(config).config.model.init == start


def test_start_states_its_games_and_base(tmp_path, adapter, model):
    unpack(preparing.LORA_FOLDER.with_suffix(".zip"), tmp_path / "lora")
    assert made_for(tmp_path / "lora") == ["TicTacToe-v0"]
    unpack(packed(adapter, tmp_path / "a.zip", model), tmp_path / "other")
    (tmp_path / "other/base.json").unlink()
    assert misfit(tmp_path / "other", model) == "it has no base.json, which identifies its base"


def test_run_starts_from_the_shipped_zip(adapter, model, tmp_path, monkeypatch, capsys):
    packed(adapter, tmp_path / "lora_ckpt.zip", model)
    folder = tmp_path / "lora_ckpt"
    monkeypatch.setattr(preparing, "LORA_FOLDER", folder)
    assert prepare(parse({"model": model.model_dump()})).config.model.init == str(folder)
    options = parse_options(["--init", "fresh"], SHORT_FORMS)
    fresh = parse({"model": model.model_dump() | {"init": options["model.init"]}})
    assert prepare(fresh).config.model.init == "fresh"
    assert json.loads((folder / "base.json").read_text())["name"] == model.name
    assert capsys.readouterr().err == ""


def test_read_only_checkout_unpacks_into_the_cache(adapter, model, tmp_path, monkeypatch):
    packed(adapter, tmp_path / "lora_ckpt.zip", model)
    monkeypatch.setattr(preparing, "LORA_FOLDER", tmp_path / "lora_ckpt")
    monkeypatch.setattr(preparing.os, "access", lambda path, _: Path(path) != tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "cache/unstable/lora_ckpt"
    assert prepare(parse({"model": model.model_dump()})).config.model.init == str(folder)
    assert read_adapter(folder, "start").weights and not (tmp_path / "lora_ckpt").exists()


def test_unwritable_cache_error_names_the_variable(tmp_path, monkeypatch):
    (tmp_path / "home").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    refused("cannot be created .*CACHE_HOME to a writable folder", cache_folder)


def test_concurrent_starts_unpack_once(adapter, model, tmp_path):
    """The second waits for the first and then uses its folder."""
    path, folder = packed(adapter, tmp_path / "a.zip", model), tmp_path / "lora"
    code = "import sys; from pathlib import Path; from unstable.models.archive import unpack_newer"
    code += "; print(flush=True); unpack_newer(Path(sys.argv[1]), Path(sys.argv[2]))"
    command = [sys.executable, "-c", code, str(path), str(folder)]
    with one_process(folder):
        other = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert other.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(timeout=1)
        unpack(path, folder)
        (folder / "mine").touch()
    assert other.wait(timeout=60) == 0
    assert (folder / "mine").exists()
