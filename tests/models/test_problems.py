"""Problems of a model are one line with a remedy, found in its files before loading."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from tests.helpers.mistakes import line_of
from tests.helpers.rows import every_row
from unstable.config import ModelConfig
from unstable.models.base import check_model
from unstable.models.describe import model_line
from unstable.models.problems import table

Spoil = Callable[[Path], object]
"""Function that breaks a model's folder."""


def sets(**fields: Any) -> Spoil:
    """Set fields in its config.json; None removes one."""

    def spoil(folder: Path) -> None:
        path = folder / "config.json"
        content = json.loads(path.read_text()) | fields
        kept = {name: value for name, value in content.items() if value is not None}
        path.write_text(json.dumps(kept))

    return spoil


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])


def without_tokenizer(folder: Path) -> None:
    for path in folder.glob("*token*"):
        path.unlink()


def names_a_shard(folder: Path) -> None:
    index = {"weight_map": {"a": "model-1.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def renamed(folder: Path, prefix: str) -> None:
    """Begin the names of all tensors with `prefix`, as `torch.compile` does."""
    file = folder / "model.safetensors"
    tensors = {prefix + name: tensor for name, tensor in load_file(file).items()}
    save_file(tensors, file, metadata={"format": "pt"})


VISION = {"vision_config": {"hidden_size": 8}, "model_type": "gemma3"}
REMOTE = {"model_type": "my_model", "auto_map": {"AutoConfig": "code.Config"}}
MISTAKES: list[tuple[str, Spoil, str]] = [
    ("no config", lambda f: (f / "config.json").unlink(), "has no config.json; give the folder"),
    ("no json", lambda f: (f / "config.json").write_text("{"), "its config.json is invalid ..."),
    ("no object", lambda f: (f / "config.json").write_text("[]"), "...json is not a JSON object"),
    ("no type", sets(model_type=None), "its config.json has no model_type; give"),
    ("unknown type", sets(model_type="no_such"), "its model_type 'no_such' is not a causal"),
    ("remote code", sets(**REMOTE), "needs its own code (auto_map, model_type 'my_mod"),
    ("encoder", sets(model_type="bert", architectures=["BertForMaskedLM"]), "...without a head"),
    ("classifier", sets(architectures=["LlamaForSequenceClassification"]), "...without a head"),
    ("two stacks", sets(model_type="t5", is_encoder_decoder=True), "...an encoder-decoder"),
    ("pictures alone", sets(model_type="vit", architectures=None), "its model_type 'vit' is not a"),
    ("pictures too", sets(**VISION), "its model_type 'gemma3' with vision_config is"),
    ("dtype", sets(dtype="float7"), "its config.json says dtype = 'float7', an unknown dtype;"),
    (
        "quantized",
        sets(quantization_config={"quant_method": "mine"}),
        "...quantization_config.quant_method = 'mine', which transformers does not know; give",
    ),
    ("no tokenizer", without_tokenizer, "the folder has no tokenizer; add the model's tokenizer"),
    ("a small embedding", sets(vocab_size=100), "...ids up to 131, but the embedding 100 rows"),
    ("cut weights", cut_weights, "its model.safetensors is damaged (...); download it again"),
    (
        "no header",
        lambda f: (f / "model.safetensors").write_bytes(b"\xff" * 40),
        "its model.safetensors is damaged (...); download it again",
    ),
    ("a shard", names_a_shard, "its model-1.safetensors is missing; add it"),
    (
        "a layer without weights",
        sets(num_hidden_layers=3),
        "its files lack the tensor model.layers.2.input_layernorm.weight and 8 more, which its "
        "config.json describes; save the model again, or",
    ),
    (
        "names of a compiled model",
        lambda f: renamed(f, "_orig_mod."),
        "its files lack the tensor lm_head.weight and 20 more, which its config.json describes, "
        "and contain _orig_mod.lm_head.weight; save",
    ),
    ("a width", sets(intermediate_size=100), "...down_proj.weight as [32, 64], but its config"),
    ("heads", sets(num_attention_heads=5), "its config cannot be read (...number of attention"),
    ("no heads", sets(num_attention_heads=0), "its config cannot be read (integer modulo by zero"),
    ("negative", sets(hidden_size=-64), "transformers cannot build the model that its config.json"),
    ("text for a number", sets(hidden_size="32"), "its config cannot be read (..., got str"),
    ("many layers", sets(num_hidden_layers=10**9), "its config.json describes 1000000000 layers"),
    (
        "no weights",
        lambda f: (f / "model.safetensors").unlink(),
        "the folder has no weights; add the model's *.safetensors",
    ),
]


@every_row("name, spoil, line", *MISTAKES)
def test_model_problems_are_one_line(name, spoil, line, tiny_folder, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    check_model(ModelConfig(name=str(folder)))
    spoil(folder)
    said = line_of(check_model, ModelConfig(name=str(folder)))
    assert len(said.splitlines()) == 1 and ";" in said
    expected = f"model.name = '{folder}': {line}"
    assert re.match(".*".join(map(re.escape, expected.split("..."))), said), said


def test_added_tokens_beyond_the_embedding_are_accepted(tiny_folder, tmp_path):
    """Accept added tokens without an embedding row, such as Gemma's image token in text models."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"].append(content["added_tokens"][0] | {"id": 132, "content": "<image>"})
    content["model"]["vocab"]["<image>"] = 132
    (folder / "tokenizer.json").write_text(json.dumps(content))
    check_model(ModelConfig(name=str(folder)))


def test_tables_match_transformers() -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES
    from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING as METHODS

    assert table("models/auto/modeling_auto.py", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES") == CLASSES
    assert table("quantizers/auto.py", "AUTO_QUANTIZATION_CONFIG_MAPPING").keys() == METHODS.keys()


def test_json_problems_are_found_without_torch(tiny_folder: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_folder, folder)
    sets(quantization_config={"quant_method": "mine"})(folder)
    code = (
        "import sys\nfrom unstable.config import ConfigError, ModelConfig\n"
        "from unstable.models.base import check_model\n"
        f"try: check_model(ModelConfig(name={str(folder)!r}))\n"
        "except ConfigError as error: print('quant_method' in str(error), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_model_line_describes_the_model(tiny_folder: Path, tmp_path: Path) -> None:
    line = model_line(ModelConfig(name=str(tiny_folder)), "float32")
    assert line.startswith(
        f"{tiny_folder}: llama, packed; 0 M parameters in float32; 2 layers of 32"
    )

    bare = tmp_path / "bare"
    shutil.copytree(tiny_folder, bare)
    dated = bare / "chat_template.jinja"
    dated.write_text("{{ strftime_now('%d') }}" + dated.read_text())
    assert "its chat template writes today's date" in model_line(ModelConfig(name=str(bare)), "x")
    dated.unlink()
    sets(num_hidden_layers=1)(bare)
    line = model_line(ModelConfig(name=str(bare)), "x")
    assert "; 9 unused tensors in its files, such as model.layers.1.input_layernorm" in line
    assert "has no chat template, so prompts use the plain one" in line

    assert "gemma3_text" in model_line(ModelConfig(name="gemma3-270m"), "bfloat16")
