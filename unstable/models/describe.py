"""Description of a model in one line, before it is loaded."""

from pathlib import Path

from unstable.config import ModelConfig
from unstable.models.base import model_path, unused_tensors
from unstable.models.shape import read_shape, read_type
from unstable.models.support import PACKED
from unstable.models.templates import PLAIN, own_template
from unstable.models.wheels import WHEELS


def model_line(model: ModelConfig, dtype: str) -> str:
    """Return name, type, path with its reason, size, precision and unusual chat template.

    Reads only configs. Raises `ConfigError` if the model's shape cannot be read.
    """
    kind, shape = read_type(model), read_shape(model)
    path = "packed" if kind in PACKED else f"padded (packing is unsupported for {kind})"
    precision = dtype if model.quantize == "none" else f"{dtype}, linear layers in {model.quantize}"
    parts = [
        f"{model.name}: {kind}, {path}",
        f"{shape.parameters / 1e6:,.0f} M parameters in {precision}",
        f"{shape.layers} layers of {shape.hidden}, a vocabulary of {shape.vocabulary:,}",
    ]
    if unused := unused_tensors(model):
        parts.append(f"{len(unused)} unused tensors in its files, such as {unused[0]}")
    return "; ".join([*parts, *_template_words(model)])


def _template_words(model: ModelConfig) -> list[str]:
    if model.chat_template == PLAIN:
        return ["prompts use the plain chat template"]
    if isinstance(model.chat_template, str):
        return ["prompts use model.chat_template"]
    if model.name in WHEELS:
        has_own = WHEELS[model.name].has_template
    else:
        folder = Path(model_path(model))
        template = own_template(folder) if folder.is_dir() else "unknown"
        if "strftime_now" in template:
            return ["its chat template writes today's date, so prompts change daily"]
        has_own = bool(template)
    return [] if has_own else ["its tokenizer has no chat template, so prompts use the plain one"]
