"""Inspection of adapters, and their comparison with a config; loads no model.

Initial weights, opponents and zips are all checked here, so that none accepts what another refuses.
"""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from unstable.config import ConfigError, ModelConfig, RunConfig
from unstable.models.adapters import (
    CONFIG_FILE,
    WEIGHTS_FILE,
    WHOLE_FILE,
    holds_whole,
    lora_keys,
    lora_layer,
    lora_scale,
)
from unstable.models.problems import read_json
from unstable.models.shape import read_shape, weight_shapes

if TYPE_CHECKING:
    from torch import Tensor

LORA = "a LoRA's folder"
_FLOATS = ("float32", "float16", "bfloat16")
_UNSERVED = (
    *("use_dora", "use_qalora", "use_bdlora", "lora_bias", "modules_to_save", "rank_pattern"),
    *("alpha_pattern", "layer_replication", "trainable_token_indices", "target_parameters"),
    *("alora_invocation_tokens", "arrow_config", "kasa_config", "velora_config"),
    "monteclora_config",
)
"""PEFT settings that make an adapter more than B @ A times one scale."""
_CHANGE_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Initializations of a LoRA that change the base's weights too."""


class LoRA(NamedTuple):
    """A plain LoRA as its two files describe it."""

    rank: int
    alpha: float
    scale: float  # factor of B @ A
    base: str  # name of its base; empty if not stated
    sizes: dict[str, tuple[int, int]]  # inputs and outputs by layer of the base


def check_start(folder: Path, model: ModelConfig, field: str, otherwise: str = "fresh") -> None:
    """Raise `ConfigError` if the weights in a folder do not match the weights to train.

    `otherwise` is another value of the field, which the remedy names.
    """
    try:
        if model.adapter == "none" or holds_whole(folder):
            _check_whole_start(folder, model, field, otherwise)
            return
        lora = _fitting(folder, model)
        wanted = model.adapter
        for name in ("rank", "alpha"):
            if (value := getattr(lora, name)) != (other := getattr(wanted, name)):
                raise ValueError(
                    f"its {name} is {value:g}, not model.adapter.{name} = {other}; "
                    f"set model.adapter.{name} to {value:g}, or {field} to {otherwise}"
                )
        if lora.scale != wanted.alpha / wanted.rank:
            raise ValueError(
                f"its updates are scaled by {lora.scale:g} (use_rslora), not by alpha / rank = "
                f"{wanted.alpha / wanted.rank:g}; give a LoRA without use_rslora"
            )
        layers = {each.name for each in read_shape(model).lora_linears(wanted.targets)}
        if odd := sorted(layers ^ lora.sizes.keys()):
            has = "has" if odd[0] in lora.sizes else "lacks"
            raise ValueError(
                f"it {has} {odd[0]}, unlike model.adapter.targets = {wanted.targets!r}; "
                f"set model.adapter.targets to its layers, or {field} to {otherwise}"
            )
    except ValueError as error:
        raise ConfigError(f"{field} = {str(folder)!r}: {error}") from None


def _check_whole_start(folder: Path, model: ModelConfig, field: str, otherwise: str) -> None:
    """Raise `ValueError` if the folder's weights, or the trained ones, are not a whole model."""
    if not holds_whole(folder):
        inspect(folder)
        raise ValueError(
            f"is a LoRA, but model.adapter = none trains all weights; set model.name to its "
            f"export by unstable export --merged, or {field} to {otherwise}"
        )
    if not model.trains_all:
        raise ValueError(
            "contains whole weights, not a LoRA; set model.adapter to none, or model.name to its "
            "export by unstable export"
        )
    _check_whole(folder, model)


def check_opponents(config: RunConfig) -> None:
    """Raise `ConfigError` if an opponent's or judge's weights cannot be served."""
    folders = [*config.judge_adapters.values()]
    for index, opponent in enumerate(config.opponents.fixed):
        if opponent.adapter_folder is not None:
            folders.append((f"opponents.fixed.{index}.path", opponent.adapter_folder))
    for field, folder in folders:
        try:
            if holds_whole(folder):
                _check_whole(folder, config.model)
            else:
                _fitting(folder, config.model)
        except ValueError as error:
            raise ConfigError(f"{field} = {str(folder)!r}: {error}") from None


def check_weights(folder: Path) -> None:
    """Raise `ValueError`, in one line, if a folder holds neither a LoRA nor whole weights."""
    if holds_whole(folder):
        _whole_shapes(folder / WHOLE_FILE)
    else:
        inspect(folder)


def _check_whole(folder: Path, model: ModelConfig) -> None:
    """Raise `ValueError` if the whole weights in a folder have another model's shapes."""
    given, wanted = _whole_shapes(folder / WHOLE_FILE), weight_shapes(model)
    for name in sorted(given.keys() | wanted.keys()):
        if given.get(name) != wanted.get(name):
            raise ValueError(
                f"its {name} is {given.get(name, 'missing')}, but {model.name} has "
                f"{wanted.get(name, 'missing')}; set model.name to its base"
            )


def _whole_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Return shapes of the weights in a file, all of them finite; one is in memory at a time."""
    from safetensors import SafetensorError, safe_open

    shapes = {}
    try:
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118 - not a mapping
                _check_values(key, tensor := file.get_tensor(key))
                shapes[key] = tuple(tensor.shape)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"its {path.name} cannot be read ({error}); save it again") from None
    return shapes


def inspect(folder: Path) -> LoRA:
    """Describe the adapter in a folder; raises `ValueError` in one line if it is no plain LoRA."""
    config = read_json(folder / CONFIG_FILE, LORA)
    if config.get("peft_type") != "LORA":
        raise ValueError(f"its peft_type is {config.get('peft_type')!r}; give one of type LORA")
    for name in _UNSERVED:
        if config.get(name):
            raise ValueError(f"its {name} is {config[name]!r}; give a plain LoRA, without it")
    if config.get("bias", "none") != "none":
        raise ValueError(f"its bias is {config['bias']!r}; give a LoRA whose bias is 'none'")
    begun = str(config.get("init_lora_weights"))
    if begun.lower().startswith(_CHANGE_BASE):
        raise ValueError(f"its init_lora_weights is {begun!r}, which changes the base; convert it")
    rank: Any = config.get("r")
    alpha: Any = config.get("lora_alpha")
    if type(rank) is not int or rank < 1:
        raise ValueError(f"its r is {rank!r}; give a LoRA whose rank is a positive whole number")
    number = isinstance(alpha, int | float) and not isinstance(alpha, bool)
    if not number or not 0 < alpha < math.inf:
        raise ValueError(f"its lora_alpha is {alpha!r}; give a LoRA whose alpha is positive")
    return LoRA(
        rank=rank,
        alpha=alpha,
        scale=lora_scale(config),
        base=config.get("base_model_name_or_path") or "",
        sizes=_sizes(_read_tensors(folder / WEIGHTS_FILE), rank),
    )


def _read_tensors(path: Path) -> "dict[str, Tensor]":
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise ValueError(f"has no {path.name}; give a LoRA's folder")
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"its {path.name} cannot be read ({error}); save it again") from None


def _sizes(tensors: "dict[str, Tensor]", rank: int) -> dict[str, tuple[int, int]]:
    """Return each layer's inputs and outputs from finite A [rank, inputs] and B [outputs, rank]."""
    if not tensors:
        raise ValueError("it has no weights; save it again")
    layers: set[str] = set()
    for key, tensor in tensors.items():
        if (layer := lora_layer(key)) is None:
            raise ValueError(f"it has {key}, which is not a LoRA's; train only linear layers")
        _check_values(key, tensor)
        layers.add(layer)
    sizes = {}
    for layer in sorted(layers):
        keys = lora_keys(layer)
        if lacking := [key for key in keys if key not in tensors]:
            raise ValueError(f"it lacks {lacking[0]}; save it again")
        a, b = (tensors[key] for key in keys)
        if a.dim() != 2 or b.dim() != 2 or not len(a) == b.shape[1] == rank:
            raise ValueError(
                f"its {layer} has A {tuple(a.shape)} and B {tuple(b.shape)}, unlike its rank "
                f"{rank}; save it again"
            )
        sizes[layer] = (a.shape[1], b.shape[0])
    return sizes


def _check_values(key: str, tensor: "Tensor") -> None:
    """Raise `ValueError` if a tensor is not of floats, or not finite."""
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in _FLOATS:
        raise ValueError(f"its {key} is {kind}; save it as one of {', '.join(_FLOATS)}")
    if not tensor.isfinite().all():
        raise ValueError(f"its {key} is not finite; give an adapter of an earlier version")


def _fitting(folder: Path, model: ModelConfig) -> LoRA:
    """Describe the adapter in a folder; raises `ValueError` if it does not fit this base."""
    lora = inspect(folder)
    if lora.base and Path(lora.base).name.lower() != Path(model.name).name.lower():
        raise ValueError(
            f"its base is {lora.base!r}, not model.name = {model.name!r}; set model.name to it, "
            f"or base_model_name_or_path in its {CONFIG_FILE} if both have the same weights"
        )
    layers = {each.name: (each.inputs, each.outputs) for each in read_shape(model).linears}
    for name, (inputs, outputs) in lora.sizes.items():
        if name not in layers:
            raise ValueError(f"its {name} is not in {model.name}; set model.name to its base")
        if layers[name] != (inputs, outputs):
            raise ValueError(
                f"its {name} is {inputs} x {outputs}, but in {model.name} "
                f"{layers[name][0]} x {layers[name][1]}; set model.name to its base"
            )
    return lora
