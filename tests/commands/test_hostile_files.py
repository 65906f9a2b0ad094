"""Nothing is unpickled or run that a run's folder, an adapter or a zip holds; no key is written."""

import asyncio
import copy
import functools
import json
import logging
import operator
import os
import pickle
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers.cli import unstable
from tests.helpers.endpoint import Reply, Server, ask, says
from tests.helpers.learners import make_batch, make_learner, make_sample, save_model
from tests.helpers.mistakes import line_of, refused
from tests.helpers.models import random_adapter, tiny_model
from unstable.cli import run
from unstable.commands.finished import is_whole
from unstable.commands.prepare import check
from unstable.config import ConfigError, ModelConfig, escape_control, keep_secret, parse
from unstable.models.adapters import read_adapter, write_adapter
from unstable.models.archive import MEMBERS, unpack
from unstable.models.checkpoint import read_checkpoint
from unstable.models.inspection import inspect
from unstable.records.files import json_line
from unstable.records.folder import RunFolder
from unstable.records.logs import Escaping, _show_error

CANARY = "sk-canary-0123456789abcdef"


class Bomb:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return os.mkdir, (str(self.path),)


@pytest.fixture
def exploded(tmp_path: Path) -> Path:
    return tmp_path / "exploded"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return save_model(tmp_path_factory.mktemp("model"))


def test_bomb_explodes_when_unpickled(exploded: Path) -> None:
    pickle.loads(pickle.dumps(Bomb(exploded)))
    assert exploded.is_dir()


@pytest.mark.parametrize("kind", ["pickle", "torch", "in the optimizer's state", "legacy"])
def test_code_in_learner_state_is_not_run(
    kind: str, model: ModelConfig, exploded: Path, tmp_path: Path
) -> None:
    learner, folder = make_learner(model), tmp_path / "000000"
    learner.save(folder)
    path, bomb = folder / "learner.pt", Bomb(exploded)
    state = torch.load(path, weights_only=True)
    if kind == "pickle":
        path.write_bytes(pickle.dumps(bomb))
    elif kind == "torch":
        torch.save(bomb, path)
    else:
        state["optimizer"]["adamw"]["state"] = {0: bomb}
        torch.save(state, path, _use_new_zipfile_serialization=kind != "legacy")
    for read in (read_checkpoint, learner.load, learner.restore):
        assert line_of(read, folder).startswith(f"{path}: not a complete and safe learner state")
    assert not exploded.exists()


def learners_places(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each value in a learner's state, except the state itself."""
    items: Any = value.items() if isinstance(value, dict) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, each in items:
        yield (*before, key)
        yield from learners_places(each, (*before, key))


def test_invalid_learner_state_is_one_line(model: ModelConfig, tmp_path: Path) -> None:
    """Each value of it in turn is another one, or is not there."""
    learner, folder = make_learner(model), tmp_path / "000001"
    learner.update(make_batch([make_sample([1, 2], [3, 4]), make_sample([1], [5], group_id=1)]))
    learner.save(folder)
    path = folder / "learner.pt"
    state = torch.load(path, weights_only=True)
    moments = state["optimizer"]["adamw"]["state"]
    for number in list(moments)[1:]:  # the first parameter's suffice
        del moments[number]
    wrong: list[Any] = [None, "text", -1, [], {}, torch.zeros(3)]
    found = list(learners_places(state))
    assert len(found) > 20
    for number, place in enumerate(found):
        changed = copy.deepcopy(state)
        owner = functools.reduce(operator.getitem, place[:-1], changed)
        if number % 7:
            owner[place[-1]] = wrong[number % len(wrong)]
        else:
            del owner[place[-1]]
        torch.save(changed, path)
        try:
            is_whole(folder)
            learner.load(folder)
        except ConfigError as error:
            assert "learner.pt: " in str(error) and "\n" not in str(error)
    for content in (b"", b"{}", path.read_bytes()[:-40]):
        path.write_bytes(content)
        assert not is_whole(folder)
    for whole in ({}, {"format": None}, {**state, "optimizer": {}}, [state]):
        torch.save(whole, path)
        assert not is_whole(folder)
    torch.save(state, path)
    assert is_whole(folder)
    learner.load(folder)


def test_pickles_of_an_adapter_are_never_read(exploded: Path, tmp_path: Path) -> None:
    """PEFT would read an `adapter_model.bin`; here weights are safetensors or not there."""
    folder = tmp_path / "lora"
    folder.mkdir()
    write_adapter(random_adapter(tiny_model(), "start", seed=0), folder)
    torch.save(Bomb(exploded), folder / "adapter_model.bin")
    inspect(folder)
    read_adapter(folder, "start")
    weights = folder / "adapter_model.safetensors"
    weights.unlink()
    with pytest.raises(ValueError, match="has no adapter_model.safetensors"):
        inspect(folder)
    torch.save(Bomb(exploded), weights)
    with pytest.raises(ValueError, match="cannot be read"):
        inspect(folder)
    assert not exploded.exists()


@pytest.mark.parametrize(
    "name, size, words",
    [
        ("../../outside", 1, "; expected"),
        ("/tmp/outside", 1, "; expected"),
        ("adapter_model.bin", 1, "; expected"),
        ("adapter_model.safetensors", 2**30, "unpacks to"),
    ],
)
def test_zip_cannot_write_outside_its_folder(
    name: str, size: int, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "lora.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for member in {*MEMBERS, name}:
            with archive.open(member, "w", force_zip64=True) as file:
                for _ in range(1 + size // 2**24 if member == name else 1):
                    file.write(bytes(min(size, 2**24)))
    refused(words, unpack, path, tmp_path / "a" / "lora")
    assert not (tmp_path / "a" / "lora").exists() and not (tmp_path / "outside").exists()


def test_code_in_a_model_folder_is_not_run(exploded: Path, tmp_path: Path) -> None:
    """`trust_remote_code` is off: what a model's folder brings in Python is refused."""
    folder = tmp_path / "model"
    tiny_model().save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Own"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(f"import os\nos.mkdir({str(exploded)!r})\nclass Own: pass\n")
    refused("model.name", lambda: check(parse({"model": {"name": str(folder)}})))
    assert not exploded.exists()


MODULE = "import os\nos.mkdir({path!r})\n"
TWO_DOCTORS = """
import sys
from unstable.cli import main
for words in (["."], ["--config", "config.yaml"]):
    sys.argv = ["unstable", "doctor", *words]
    try:
        main()
    except SystemExit as end:
        print(end.code)
"""


def test_modules_in_working_directory_shadow_no_package(exploded: Path, tmp_path: Path) -> None:
    """`doctor` imports no module from the working directory, such as a stranger's run folder."""
    for name in ("json", "yaml", "rich", "torch", "textarena", "unstable"):
        (tmp_path / f"{name}.py").write_text(MODULE.format(path=str(exploded)))
    (tmp_path / "config.yaml").write_text("seed: 3\n")
    command = [sys.executable, "-P", "-c", TWO_DOCTORS]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n0\n") == 2
    assert not exploded.exists()


def test_python_tags_in_a_config_are_rejected(tmp_path: Path, exploded: Path) -> None:
    tag = f"!!python/object/apply:os.mkdir ['{exploded}']"
    (tmp_path / "config.yaml").write_text(f"seed: {tag}\n")
    (tmp_path / "checkpoints/000000").mkdir(parents=True)
    for command in ("eval", "exploit"):
        refused("unsupported tag", run, [command, str(tmp_path)])
    assert not exploded.exists()


def test_run_state_cannot_name_files_outside_its_folder(tmp_path: Path) -> None:
    folder, victim = RunFolder(tmp_path / "run"), tmp_path / "victim.txt"
    folder.metrics.parent.mkdir()
    for path in (folder.metrics, folder.config, victim):
        path.write_text("one\ntwo\n")
    names = ["../victim.txt", str(victim), "config.yaml", "games/../../victim.txt"]
    folder.rewind(0, {"metrics.jsonl": 4, **dict.fromkeys(names, 0)})
    assert folder.metrics.read_text() == "one\n"
    assert victim.read_text() == folder.config.read_text() == "one\ntwo\n"


@pytest.mark.parametrize(
    "name", [".lock", "metrics.jsonl", "logs/eval.log", "games", "checkpoints/000000", "wandb"]
)
def test_link_out_of_a_run_folder_is_rejected(name: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    if "." in name:
        victim.write_text("mine\n")
    else:
        victim.mkdir()
        (victim / "mine.txt").write_text("mine\n")
    folder = RunFolder(tmp_path / "run")
    link = folder.root / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(victim)
    folder.checkpoint(0).mkdir(parents=True, exist_ok=True)
    folder.config.write_text("seed: 3\n")
    place = str(folder.root)
    for command in (
        *(["train", "--resume", place], ["train", "--fork", f"{place}@0"], ["eval", place]),
        *(["export", place], ["report", place]),
    ):
        said = line_of(run, command)
        assert said.startswith(f"{link}: symbolic link out of the run's folder")
    left = victim if victim.is_file() else victim / "mine.txt"
    assert left.read_text() == "mine\n"
    assert {*victim.parent.iterdir()} == {folder.root, victim}


def test_links_within_a_run_folder_and_of_wandb_are_allowed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.checkpoint(1).mkdir(parents=True)
    folder.name_best(1)
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "debug-core.log").symlink_to("/var/log/debug-core.log")
    folder.check_links()


def test_locking_a_run_keeps_the_lock_file_content(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("kept")
    with RunFolder(tmp_path).held("here"):
        assert (tmp_path / ".lock").read_text() == "kept"


# Keys


@pytest.fixture
def canary(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CANARY_KEY", CANARY)
    return "CANARY_KEY"


def test_shown_text_masks_keys(canary: str) -> None:
    keep_secret(canary)
    assert escape_control(f"sent {CANARY} back") == "sent <CANARY_KEY> back"
    assert CANARY.encode() not in json_line({"text": CANARY})
    record = logging.LogRecord("unstable", logging.ERROR, "", 0, "%s", (CANARY,), None)
    assert Escaping("%(message)s").format(record) == "<CANARY_KEY>"


def test_uncaught_error_masks_keys(canary: str, capsys: pytest.CaptureFixture[str]) -> None:
    keep_secret(canary)
    try:
        raise KeyError(CANARY)
    except KeyError as error:
        _show_error(type(error), error, error.__traceback__)
    shown = capsys.readouterr().err
    assert "KeyError" in shown and CANARY not in shown


def test_placeholder_key_is_not_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY_KEY", "EMPTY")
    keep_secret("CANARY_KEY")
    assert escape_control("EMPTY") == "EMPTY"


@pytest.mark.parametrize(
    "changes",
    [
        {"base_url": f"http://me:{CANARY}@host/v1"},
        {"base_url": f"https://host/v1?key={CANARY}"},
        {"api_key_env": CANARY},
        {"api_key": CANARY},
    ],
)
def test_config_rejects_keys_without_showing_them(changes: dict[str, str]) -> None:
    opponent = {"kind": "openai", "model": "m", **changes}
    said = line_of(parse, {"opponents": {"fixed": [opponent]}})
    assert said.startswith("opponents.fixed.0") and CANARY not in said


RUN = """
model: {{name: {model}, dtype: float32, init: fresh, adapter: {{rank: 4}}}}
games:
  - {{env: TicTacToe-v0, name: Here, isolated: false}}
  - {{env: TicTacToe-v0, name: Apart, isolated: true}}
sampling: {{max_tokens: 4}}
actors: {{num: 1, games_in_flight: 8}}
learner: {{batch_size: 16, micro_batch_size: 8}}
opponents:
  draw: {{self: 0, past: 0, fixed: 1}}
  fixed:
    - {{kind: openai, name: remote, model: m, api_key_env: CANARY_KEY, base_url: "{url}",
        max_retries: 0, max_calls: 1000}}
eval: {{every: 0}}
loop: {{steps: 9, mode: sync, max_failures: 8}}
"""


@pytest.mark.tables("commands rotating", 1)
@pytest.mark.slow
def test_failing_run_writes_and_shows_no_key(
    server: Server, canary: str, tiny_folder: Path, tmp_path: Path
) -> None:
    """The endpoint says some good moves, which hold the key, then refuses the key and echoes it."""
    server.replies = [says(f"[4] {CANARY}")] * 6 + [
        Reply(401, {"error": {"message": f"wrong key {CANARY}", "header": f"Bearer {CANARY}"}})
    ]
    (tmp_path / "run.yaml").write_text(RUN.format(model=tiny_folder, url=server.url))
    done = unstable(tmp_path, "train", "--config", "run.yaml", "--run_dir", "run")
    assert done.returncode == 1 and "loop.max_failures = 8" in done.stderr, done.stderr
    assert server.asked > 6
    assert CANARY not in done.stdout + done.stderr
    assert "<CANARY_KEY>" in done.stderr  # the key was sent
    log = "".join(path.read_text() for path in (tmp_path / "run/logs").iterdir())
    assert set(re.findall(r" of (\w+) failed: ", log)) == {"Here", "Apart"}
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert len(files) > 5
    assert [path for path in files if CANARY.encode() in path.read_bytes()] == []


def test_echoed_key_is_masked_in_answers(server: Server, canary: str) -> None:
    """The answer masks an echoed key before the policy, a user's sink or an opponent sees it."""
    server.replies = [says(f"[{CANARY}]")]
    assert asyncio.run(ask(server, api_key_env=canary)) == "[<CANARY_KEY>]"
