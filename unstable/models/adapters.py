"""Trained weights as bytes and files: LoRAs that PEFT and vLLM read, and whole weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unstable.config import AdapterConfig, ConfigError, RunConfig
from unstable.models.shape import linears_of
from unstable.records.files import write_synced
from unstable.types import Adapter

if TYPE_CHECKING:
    from peft import PeftModel
    from torch import Tensor, nn
    from transformers import PreTrainedModel

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
WHOLE_FILE = "model.safetensors"
"""File of all weights of a model, by the names of its parameters, tied weights once."""
VLLM_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks that vLLM can be set up for as its largest; smaller ones are padded."""
_PREFIX, _A, _B = "base_model.model.", ".lora_A.weight", ".lora_B.weight"
"""Text that PEFT adds to the name of a layer."""


def attach_lora(model: "PreTrainedModel", config: AdapterConfig, seed: int) -> "PeftModel":
    """Return the model with a trainable LoRA: fp32 masters, B zero, A drawn from `seed` alone."""
    import torch
    from peft import LoraConfig, get_peft_model

    targets = config.targets
    if targets == "all-linear":
        targets = [linear.name for linear in linears_of(model) if not linear.spared]
    lora = LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        target_modules=targets,
        task_type="CAUSAL_LM",
        base_model_name_or_path=model.config.name_or_path,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            peft_model = get_peft_model(model, lora)
        except ValueError as error:
            raise ConfigError(
                f"model.adapter.targets = {config.targets!r}: {str(error).splitlines()[0]}; "
                "name linear layers of the model, or all-linear"
            ) from None
    if lora.target_parameters:
        raise ConfigError(
            f"model.adapter.targets = {config.targets!r}: experts are not linear "
            "layers; name linear layers, or all-linear"
        )
    return peft_model


def weight_places(model: "nn.Module") -> dict[str, list[tuple["nn.Module", str]]]:
    """Map each weight's name in files to its modules and names there; tied weights have several."""
    names: dict[nn.Parameter, str] = {}
    places: dict[str, list[tuple[nn.Module, str]]] = {}
    for path, parameter in model.named_parameters(remove_duplicate=False):
        module, _, own = path.rpartition(".")
        name = names.setdefault(parameter, path)
        places.setdefault(name, []).append((model.get_submodule(module), own))
    return places


def holds_whole(folder: Path) -> bool:
    """Return whether a folder holds whole weights instead of an adapter."""
    return (folder / WHOLE_FILE).is_file() and not (folder / CONFIG_FILE).is_file()


def holds_weights(folder: Path) -> bool:
    """Return whether a folder holds an adapter or whole weights."""
    return (folder / CONFIG_FILE).is_file() or (folder / WHOLE_FILE).is_file()


def read_adapter(folder: Path, name: str) -> Adapter:
    """Read the adapter or whole weights in a folder; raises `ConfigError` if it has neither.

    The adapter is called `name`. `models.inspection` has checked folders that users gave.
    """
    if holds_whole(folder):
        return Adapter(name=name, weights=(folder / WHOLE_FILE).read_bytes(), config={})
    config = json.loads(_read(folder, CONFIG_FILE))
    return Adapter(name=name, weights=_read(folder, WEIGHTS_FILE), config=config)


def lora_ranks(config: RunConfig) -> dict[str, int]:
    """Return ranks of the LoRAs of the policy, opponents and judges, by the fields that name them.

    Raises `ConfigError` if an adapter does not exist.
    """
    adapter = config.model.adapter
    own = {} if adapter == "none" else {"model.adapter.rank": adapter.rank}
    fixed = [each.adapter_folder for each in config.opponents.fixed]
    folders = [(f"opponents.fixed.{index}.path", folder) for index, folder in enumerate(fixed)]
    return own | {
        field: json.loads(_read(folder, CONFIG_FILE))["r"]
        for field, folder in [*folders, *config.judge_adapters.values()]
        if folder is not None and not holds_whole(folder)
    }


def padded_rank(rank: int) -> int:
    """Return the smallest of `VLLM_RANKS` that holds `rank`."""
    assert rank <= VLLM_RANKS[-1], "placement refuses it"
    return next(largest for largest in VLLM_RANKS if largest >= rank)


def _read(folder: Path, file: str) -> bytes:
    path = folder / file
    if not path.is_file():
        raise ConfigError(f"adapter folder {str(folder)!r} has no {file}; give a LoRA's folder")
    return path.read_bytes()


def write_adapter(adapter: Adapter, folder: Path, *, synced: bool = True) -> None:
    """Write an adapter's two files, or the one of whole weights, into an existing folder.

    With `synced` they survive a power failure.
    """
    write = write_synced if synced else Path.write_bytes
    if adapter.is_whole:
        write(folder / WHOLE_FILE, adapter.weights)
        return
    write(folder / WEIGHTS_FILE, adapter.weights)
    write(folder / CONFIG_FILE, json.dumps(adapter.config, indent=2).encode())


def lora_keys(layer: str) -> tuple[str, str]:
    """Return PEFT's names of A [rank, in] and B [out, rank] of a layer of the base.

    >>> lora_keys("lm_head")
    ('base_model.model.lm_head.lora_A.weight', 'base_model.model.lm_head.lora_B.weight')
    """
    return _PREFIX + layer + _A, _PREFIX + layer + _B


def lora_layer(key: str) -> str | None:
    """Return the layer of the base by PEFT's name of a tensor; None if it is no LoRA's."""
    if not (key.startswith(_PREFIX) and key.endswith((_A, _B))):
        return None
    return key.removeprefix(_PREFIX).removesuffix(_A).removesuffix(_B)


def make_lora(
    name: str, pairs: Mapping[str, tuple["Tensor", "Tensor"]], *, rank: int, alpha: float
) -> Adapter:
    """Return a LoRA of A [rank, in] and B [out, rank] by layer of the base."""
    from safetensors.torch import save

    tensors = {
        key: tensor
        for layer, pair in pairs.items()
        for key, tensor in zip(lora_keys(layer), pair, strict=True)
    }
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": alpha,
        "target_modules": sorted({layer.rpartition(".")[2] for layer in pairs}),
        "bias": "none",
    }
    return Adapter(name=name, weights=save(tensors), config=config)


def lora_scale(config: Mapping[str, Any]) -> float:
    """Return the factor of B @ A according to PEFT's config."""
    rank, alpha = config["r"], config["lora_alpha"]
    return float(alpha / rank**0.5 if config.get("use_rslora") else alpha / rank)


def lora_pairs(adapter: Adapter) -> dict[str, tuple["Tensor", "Tensor", float]]:
    """Return A [rank, in], B [out, rank] and the scale of B @ A for each module of the base."""
    from safetensors.torch import load

    tensors, scale = load(adapter.weights), lora_scale(adapter.config)
    layers = dict.fromkeys(layer for key in tensors if (layer := lora_layer(key)) is not None)
    pairs = {}
    for layer in layers:
        a, b = lora_keys(layer)
        pairs[layer] = (tensors[a], tensors[b], scale)
    return pairs
