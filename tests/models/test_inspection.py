"""Adapter metadata decides what fits: start, opponents and the zip read it in the same way."""

import json
import math
from pathlib import Path

import pytest
import torch
from peft import AutoPeftModelForCausalLM
from safetensors.torch import load_file, save_file

from tests.helpers.mistakes import line_of, refused
from tests.helpers.models import random_adapter, tiny_model
from unstable import cli
from unstable.commands.evaluate import evaluate
from unstable.commands.prepare import check
from unstable.config import AdapterConfig, ModelConfig, dump, parse
from unstable.learners.model.trained import TrainedLora
from unstable.models.adapters import CONFIG_FILE, WEIGHTS_FILE, attach_lora, write_adapter
from unstable.models.archive import BASE_FILE, describe_base, misfit, pack_adapter, unpack
from unstable.models.base import load_model
from unstable.models.inspection import check_start, inspect

ROOT = Path(__file__).parent.parent.parent
DEEP = b"[" * 100_000
KEY = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.fixture
def model(tiny_folder: Path) -> ModelConfig:
    lora = AdapterConfig(rank=4, alpha=8)
    return ModelConfig(name=str(tiny_folder), dtype="float32", adapter=lora)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A start that fits."""
    (tmp_path / "lora").mkdir()
    write_adapter(random_adapter(tiny_model(), "start", seed=0), tmp_path / "lora")
    return tmp_path / "lora"


def change(folder: Path, **settings: object) -> None:
    path = folder / CONFIG_FILE
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def change_weights(folder: Path, edit) -> None:
    tensors = load_file(folder / WEIGHTS_FILE)
    edit(tensors)
    save_file(tensors, folder / WEIGHTS_FILE)


def other_values(value: float):
    return lambda tensors: tensors[KEY].fill_(value)


def other_type(dtype: torch.dtype):
    return lambda tensors: tensors.update({KEY: tensors[KEY].to(dtype)})


def renamed(tensors) -> None:
    tensors["model." + KEY] = tensors.pop(KEY)


def narrower(tensors) -> None:
    tensors[KEY] = tensors[KEY][:, 1:].contiguous()


def fewer(tensors) -> None:
    for kind in "AB":
        del tensors[KEY.replace("lora_A", f"lora_{kind}")]


BAD_ANYWHERE = {
    f"its {name} is {value!r}": {name: value}
    for name, value in [
        *(("peft_type", "LOHA"), ("use_dora", True), ("bias", "all"), ("r", -4), ("r", "4")),
        *(("rank_pattern", {"q_proj": 8}), ("modules_to_save", ["lm_head"])),
        *(("init_lora_weights", "pissa"), ("lora_alpha", "much"), ("lora_alpha", math.nan)),
    ]
} | {
    "unlike its rank 8": {"r": 8},
    "its base is 'Other/Model-7B'": {"base_model_name_or_path": "Other/Model-7B"},
    "q_proj.lora_A.weight is not finite": other_values(math.nan),
    "q_proj.lora_A.weight is int32": other_type(torch.int32),
    "which is not a LoRA's": renamed,
    "q_proj is 31 x 32": narrower,
    "it lacks base_model.model.model.layers.0.self_attn.q_proj.lora_A": lambda t: t.pop(KEY),
    "it has no weights": lambda tensors: tensors.clear(),
}
BAD_AS_A_START = {
    "its alpha is 64, not model.adapter.alpha = 8; set model.adapter.alpha to 64": {
        "lora_alpha": 64
    },
    "its updates are scaled by 4 (use_rslora)": {"use_rslora": True},
    "it lacks model.layers.0.self_attn.q_proj, unlike model.adapter.targets": fewer,
}


def spoil(folder: Path, how) -> None:
    change(folder, **how) if isinstance(how, dict) else change_weights(folder, how)


def as_opponent(model: ModelConfig, folder: Path):
    opponents = {"fixed": [{"kind": "random"}, {"kind": "checkpoint", "path": str(folder)}]}
    return parse({"model": model.model_dump() | {"init": "fresh"}, "opponents": opponents})


def as_start(model: ModelConfig, folder: Path):
    return parse({"model": model.model_dump() | {"init": str(folder)}})


def as_zip(model: ModelConfig, folder: Path) -> str | None:
    (folder / BASE_FILE).write_text(json.dumps(describe_base(model, ["TicTacToe-v0"])))
    return misfit(folder, model)


def test_fitting_lora_is_accepted_everywhere(model, folder):
    check(as_start(model, folder))
    check(as_opponent(model, folder))
    assert as_zip(model, folder) is None
    wide = folder.with_name("wide")  # an opponent's LoRA may differ from the trained one
    wide.mkdir()
    write_adapter(random_adapter(tiny_model(), "wide", seed=0, rank=8), wide)
    check(as_opponent(model, wide))
    assert (inspect(wide).rank, inspect(wide).alpha, inspect(wide).scale) == (8, 16, 2.0)
    refused("its rank is 8, not model.adapter.rank = 4; set", check, as_start(model, wide))


@pytest.mark.parametrize(("words", "how"), (BAD_ANYWHERE | BAD_AS_A_START).items())
def test_unfitting_lora_is_one_line_before_loading(words, how, model, folder, monkeypatch):
    spoil(folder, how)
    monkeypatch.setattr("unstable.models.base.load_model", None)
    line = line_of(check, as_start(model, folder))
    assert line.startswith(f"model.init = '{folder}': ") and words in line
    assert ";" in line or "convert it" in line  # remedy
    assert words in (as_zip(model, folder) or "")
    if words in BAD_ANYWHERE:
        line = line_of(check, as_opponent(model, folder))
        assert line.startswith("opponents.fixed.1.path = ") and words in line
    else:
        check(as_opponent(model, folder))


def test_opponents_are_checked_before_loading(model, folder, tmp_path, monkeypatch):
    """A damaged adapter of a finished run's opponent."""
    run = tmp_path / "run"
    (run / "checkpoints" / "000001").mkdir(parents=True)
    config = as_opponent(model, folder)
    evaluation = config.eval.model_copy(update={"opponents": [config.opponents.fixed[1].key]})
    (run / "config.yaml").write_text(dump(config.model_copy(update={"eval": evaluation})))
    change_weights(folder, other_values(math.nan))
    monkeypatch.setattr("unstable.models.base.load_model", None)
    # Without random, which is excluded.
    refused("^opponents.fixed.0.path = .*is not finite", evaluate, run, None, {})


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"\xff\xfe", b"\x80\x02}q\x00.", DEEP])
@pytest.mark.parametrize("file", [CONFIG_FILE, WEIGHTS_FILE])
def test_broken_files_are_one_line(content, file, model, folder):
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)

    for config in (as_start(model, folder), as_opponent(model, folder)):
        refused(file, check, config)


def test_truncated_weights_are_one_line(model, folder):
    (folder / WEIGHTS_FILE).write_bytes((folder / WEIGHTS_FILE).read_bytes()[:-4])
    refused("cannot be read .*; save it again$", check, as_start(model, folder))


@pytest.mark.parametrize(
    "content", ["no JSON", "{}", "[]", "[" * 100_000, '{"name": 3, "adapter": 4}']
)
def test_broken_base_json_is_a_misfit(content, model, folder):
    (folder / BASE_FILE).write_text(content)
    assert "base.json" in (misfit(folder, model) or "")
    whole = describe_base(model, ["TicTacToe-v0"]) | {"adapter": 4}
    (folder / BASE_FILE).write_text(json.dumps(whole))
    assert "its LoRA has 4" in (misfit(folder, model) or "")


def test_shipped_start_fits_the_default_model(tmp_path):
    unpack(ROOT / "lora_ckpt.zip", tmp_path / "lora")
    check_start(tmp_path / "lora", ModelConfig(), "model.init")


def test_published_adapter_loads_with_documented_commands(tmp_path, monkeypatch, capsys):
    """The line of docs/export.md, for the tiny model: it gives the name in the adapter a folder."""
    documented = 'ln -s "$(unstable model smollm2-135m)" smollm2-135m'
    assert documented in (ROOT / "docs/export.md").read_text(encoding="utf-8")
    config = ModelConfig(name="tiny", dtype="float32", adapter=AdapterConfig(rank=4, alpha=8))
    adapter = TrainedLora(attach_lora(load_model(config), config.lora, 0)).export("x")
    pack_adapter(adapter, tmp_path / "a.zip", base=describe_base(config, ["TicTacToe-v0"]), card="")
    unpack(tmp_path / "a.zip", tmp_path / "lora")
    monkeypatch.chdir(tmp_path)
    assert cli.run(["model", "tiny"]) == 0
    Path("tiny").symlink_to(capsys.readouterr().out.strip())
    loaded = AutoPeftModelForCausalLM.from_pretrained("lora")
    assert loaded.peft_config["default"].r == 4


def test_model_command_rejects_missing_models():
    refused(r"^model.name = './nowhere': no such folder", cli.run, ["model", "./nowhere"])
    refused("^Missing argument 'NAME'; see unstable model --help", cli.run, ["model"])
