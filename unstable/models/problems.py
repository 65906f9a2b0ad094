"""Problems of a model, found only in JSON and headers, before anything is loaded.

Each mistake is a `ConfigError` of one line, within a second: neither torch nor transformers is
imported.
"""

import ast
import importlib.metadata
import importlib.util
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from unstable.config import ConfigError, shown
from unstable.models.tensors import reason
from unstable.records.files import read_small_json

CONFIG = "config.json"
GENERATION = "generation_config.json"
TOKENIZER = "tokenizer.json"
_TOKENIZERS = (
    *(TOKENIZER, "tokenizer.model", "tokenizer_config.json", "vocab.json", "vocab.txt"),
    *("spiece.model", "tekken.json", "sentencepiece.bpe.model"),
)
_HEADS = ("CausalLM", "LMHead", "ConditionalGeneration")
"""Parts of the names of classes that have a head for text."""
_DTYPES = ("float32", "float16", "bfloat16", "float64", "auto")
_PICKLED = "pytorch_model*.bin"
_MODEL = "the folder of a model in Hugging Face format"


def check_folder(folder: Path, name: str) -> None:
    """Raise `ConfigError` if a model in Hugging Face form cannot be used.

    `name` is `model.name`. Weights are not read, only the headers of their files.
    """
    with _naming(name):
        content = read_json(folder / CONFIG, _MODEL)
        _check_kind(content)
        _check_layers(content, _check_weights(folder))
        if not any((folder / file).is_file() for file in _TOKENIZERS):
            raise ValueError(f"the folder has no tokenizer; add the model's {TOKENIZER}")
        _check_vocabulary(folder, content)
        _check_generation(folder)
        _check_class(content)


def check_config(content: Mapping[str, Any], name: str) -> None:
    """Raise `ConfigError` if a `config.json` describes no model that can be used."""
    with _naming(name):
        _check_kind(content)
        _check_class(content)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Raise `ConfigError` that names the model for each `ValueError` of the body."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(f"model.name = {shown(name)}: {error}") from None


def read_json(path: Path, wanted: str) -> dict[str, Any]:
    """Read the JSON object in a file of a model or an adapter; raises `ValueError` if it has none.

    `wanted` describes the folder that the remedy requests.
    """
    try:
        if path.exists() and not path.is_file():
            raise ValueError("not a regular file")
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"has no {path.name}; give {wanted}") from None
    except NotADirectoryError:
        raise ValueError(f"not a folder; give {wanted}; unpack a zip first") from None
    except (OSError, ValueError, RecursionError) as error:
        problem = str(error).partition("\n")[0][:150]
        raise ValueError(f"its {path.name} is invalid JSON ({problem}); give {wanted}") from None
    if not isinstance(content, dict):
        raise ValueError(f"its {path.name} is not a JSON object; give {wanted}")
    return content


def _check_generation(folder: Path) -> None:
    """Refuse a `generation_config.json` whose ends of answers are no token ids."""
    if not (folder / GENERATION).exists():
        return
    ends = read_json(folder / GENERATION, _MODEL).get("eos_token_id")
    if not all(type(each) is int for each in (ends if isinstance(ends, list) else [ends or 0])):
        raise ValueError(
            f"its {GENERATION} has eos_token_id = {shown(ends)}; give a token id, or a list of ids"
        )


def _check_kind(content: Mapping[str, Any]) -> None:
    """Refuse a `config.json` that describes no decoder-only causal language model."""
    kind = content.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise ValueError(f"its {CONFIG} has no model_type; give the folder of a language model")
    if content.get("is_encoder_decoder"):
        raise ValueError(
            f"its {CONFIG} describes an encoder-decoder (model_type {shown(kind)}); give a "
            "causal language model"
        )
    classes = content.get("architectures") or []
    has_head = any(head in str(each) for each in classes for head in _HEADS)
    tied = content.get("tie_word_embeddings") and str(classes[:1]).endswith("Model']")
    if classes and not has_head and not tied:
        raise ValueError(
            f"its {CONFIG} says architectures = {shown(classes)}, without a head for "
            "text; give a causal language model"
        )
    for field in ("dtype", "torch_dtype"):
        dtype = content.get(field)
        if dtype is not None and str(dtype).removeprefix("torch.") not in _DTYPES:
            raise ValueError(
                f"its {CONFIG} says {field} = {shown(dtype)}, an unknown dtype; write one "
                f"of {', '.join(_DTYPES[:3])}"
            )


def _check_class(content: Mapping[str, Any]) -> None:
    """Refuse a `config.json` for which transformers has no causal language model.

    Code that comes with a model is never run.
    """
    kind = content["model_type"]
    found = table("models/auto/modeling_auto.py", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES").get(kind)
    if found is None and content.get("auto_map"):
        raise ValueError(
            f"needs its own code (auto_map, model_type {shown(kind)}), which "
            "is never run; give a model that transformers supports"
        )
    senses = [field for field in ("vision_config", "audio_config") if content.get(field)]
    if found is None or (senses and found.endswith("ForConditionalGeneration")):
        has = f" with {senses[0]}" if senses else ""
        raise ValueError(
            f"its model_type {shown(kind)}{has} is not a causal language model of transformers "
            f"{importlib.metadata.version('transformers')}; give another model, or install a newer "
            "transformers that supports it"
        )
    _check_quantized(content.get("quantization_config"))


def _check_quantized(given: Any) -> None:
    if not given:
        return
    method = given.get("quant_method") if isinstance(given, dict) else None
    in_bits = isinstance(given, dict) and (given.get("load_in_4bit") or given.get("load_in_8bit"))
    methods = table("quantizers/auto.py", "AUTO_QUANTIZATION_CONFIG_MAPPING")
    known = {each.removesuffix("_4bit").removesuffix("_8bit") for each in methods}
    if str(getattr(method, "value", method)) not in known and not in_bits:
        raise ValueError(
            f"its {CONFIG} says quantization_config.quant_method = {shown(method)}, which "
            "transformers does not know; give the unquantized model, and set model.quantize"
        )


@lru_cache
def table(file: str, name: str) -> dict[str, str]:
    """Return a table of transformers, parsed from its source, since importing takes seconds."""
    found = importlib.util.find_spec("transformers")
    assert found is not None and found.origin is not None, "it is a dependency"
    tree = ast.parse((Path(found.origin).parent / file).read_text(encoding="utf-8"))
    (value,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name
    )
    if isinstance(value, ast.Dict):
        return {ast.literal_eval(key): "" for key in value.keys if key is not None}
    assert isinstance(value, ast.Call), "an OrderedDict of pairs"
    return dict(ast.literal_eval(value.args[0]))


def _check_weights(folder: Path) -> float:
    """Return the number of tensors in the folder; infinite if they are not in safetensors."""
    files = sorted(folder.glob("*.safetensors"))
    if not files and not any(folder.glob(_PICKLED)):
        raise ValueError("the folder has no weights; add the model's *.safetensors")
    index = read_small_json(folder / "model.safetensors.index.json") or {}
    shards = index.get("weight_map")
    named = {str(each) for each in shards.values()} if isinstance(shards, dict) else set()
    if lacking := sorted(named - {file.name for file in files}):
        raise ValueError(f"its {lacking[0]} is missing; add it")
    tensors = 0 if files else math.inf
    for file in files:
        try:
            with safe_open(file, framework="np") as held:  # imports no torch
                tensors += len(held.keys())
        except (OSError, SafetensorError) as error:
            raise ValueError(
                f"its {file.name} is damaged ({reason(error)}); download it again"
            ) from None
    return tensors


def _check_layers(content: Mapping[str, Any], tensors: float) -> None:
    """Refuse more layers than there are tensors, before anything builds them."""
    text = content.get("text_config")
    for config in (content, text if isinstance(text, dict) else {}):
        layers = config.get("num_hidden_layers", 0)
        if isinstance(layers, int) and layers > tensors:
            raise ValueError(
                f"its {CONFIG} describes {layers} layers, but its files contain {tensors} "
                f"tensors; correct {CONFIG}"
            )


def _check_vocabulary(folder: Path, content: Mapping[str, Any]) -> None:
    """Refuse ids beyond the embedding, except of added tokens: some models never use theirs."""
    text = content.get("text_config")
    size = content.get("vocab_size", text.get("vocab_size") if isinstance(text, dict) else None)
    path = folder / TOKENIZER
    if not isinstance(size, int) or not path.is_file():
        return
    tokenizer = read_json(path, _MODEL)
    try:
        most = max(_ids(tokenizer), default=0)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"its {TOKENIZER} is not a tokenizer; give a model with a tokenizer"
        ) from None
    if most >= size:
        raise ValueError(
            f"its {TOKENIZER} has ids up to {most}, but the embedding {size} rows "
            f"(vocab_size); give the model with its original tokenizer"
        )


def _ids(tokenizer: Mapping[str, Any]) -> Iterator[int]:
    """Yield the ids of the vocabulary, except added tokens."""
    added = {each["content"] for each in tokenizer.get("added_tokens") or []}
    words = tokenizer["model"].get("vocab", {})
    if isinstance(words, list):  # pairs of word and score of a unigram model
        words = {each[0]: index for index, each in enumerate(words)}
    return (int(index) for word, index in words.items() if word not in added)
