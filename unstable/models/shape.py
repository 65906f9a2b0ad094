"""A model's shape: the sizes for memory estimates, read from its config without any weights."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unstable.config import ConfigError, ModelConfig
from unstable.models.base import decoder_of, load_config
from unstable.models.known import KNOWN
from unstable.models.plain import plain_shape, plain_type
from unstable.models.sizes import Linear, ModelShape
from unstable.models.tensors import misreadings, reason

if TYPE_CHECKING:
    from torch import nn
    from transformers import PretrainedConfig, PreTrainedModel

UNBOUNDED = 1 << 20
"""Length in tokens of a model that states no maximum."""
EXPERTS = "experts"
"""End of the name of a layer's experts."""


def read_shape(model: ModelConfig) -> ModelShape:
    """Return the shape of the model; raises `ConfigError` if its config does not describe one."""
    return _read_shape(model.name)


def read_type(model: ModelConfig) -> str:
    """Return the model's type, such as llama; raises `ConfigError` as `load_config` does."""
    kind = plain_type(model.name)
    return kind or str(known_config(model.name).get_text_config().model_type)


def known_config(name: str) -> "PretrainedConfig":
    """Return the model's own config, or for a known model one of its sizes, without its files.

    Raises `ConfigError` as `load_config` does.
    """
    from transformers import AutoConfig

    if name in KNOWN and not Path(name).is_dir():
        return AutoConfig.for_model(**KNOWN[name])
    return load_config(ModelConfig(name=name))


@lru_cache(maxsize=8)
def _read_shape(name: str) -> ModelShape:
    if (plain := plain_shape(name)) is not None:
        return plain
    config = known_config(name)
    try:
        return shape_of(config)
    except misreadings() as error:
        raise ConfigError(
            f"model.name = {name!r}: not a causal language model that transformers can build "
            f"({reason(error)}); give another model"
        ) from None


def weight_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all weights of the model by their names, tied weights once."""
    own = on_meta(load_config(model)).named_parameters()
    return {name: tuple(parameter.shape) for name, parameter in own}


def on_meta(config: "PretrainedConfig") -> "PreTrainedModel":
    """Build a model with this config on torch's meta device, which holds no data."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


def shape_of(config: "PretrainedConfig") -> ModelShape:
    """Return the shape of a model with this config."""
    model = on_meta(config)
    linears = tuple(linears_of(model))
    text = config.get_text_config()
    head = model.get_output_embeddings()
    hidden = _number(text, "hidden_size", "d_model") or head.weight.shape[1]
    heads = _number(text, "num_attention_heads")  # 0 without attention
    head_size = _number(text, "head_dim") or (hidden // heads if heads else 0)
    key_heads = _number(text, "num_key_value_heads") or heads
    return ModelShape(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layers=_number(text, "num_hidden_layers", "decoder_layers") or _longest_list(model),
        hidden=hidden,
        intermediate=_number(text, "intermediate_size")
        or max((linear.outputs for linear in linears), default=4 * hidden),
        queries=heads * head_size,
        keys=key_heads * head_size,
        vocabulary=_number(text, "vocab_size") or head.weight.shape[0],
        max_length=_max_length(text),
        normalized_heads=any(name.endswith("q_norm") for name, _ in model.named_modules()),
        has_experts=any(name.endswith(EXPERTS) for name, _ in model.named_modules()),
        linears=linears,
    )


def _max_length(config: "PretrainedConfig") -> int:
    """Return the most tokens of a sequence.

    With the rope type "longrope" it is the original window: beyond it one long sequence changes the
    factors of all others in its batch, by 0.5 to 2 nats per token.
    """
    most = _number(config, "max_position_embeddings", "n_positions", "max_seq_len") or UNBOUNDED
    for name in ("rope_parameters", "rope_scaling"):
        rope: Any = getattr(config, name, None)
        if isinstance(rope, dict) and rope.get("rope_type", rope.get("type")) == "longrope":
            original = _number(config, "original_max_position_embeddings")
            return min(most, original or rope.get("original_max_position_embeddings") or most)
    return most


def _number(config: "PretrainedConfig", *names: str) -> int:
    """Return the config's number under one of the names, of a list the largest; 0 if none."""
    for name in names:
        try:
            value: Any = getattr(config, name, None)
        except RuntimeError:  # varies by layer
            continue
        numbers = value if isinstance(value, list | tuple) else [value]
        if found := [each for each in numbers if isinstance(each, int) and each > 0]:
            return max(found)
    return 0


def _longest_list(model: "PreTrainedModel") -> int:
    """Return the number of modules in the longest list of the model: its layers."""
    from torch import nn

    return max((len(m) for m in model.modules() if isinstance(m, nn.ModuleList)), default=1)


def linears_of(model: "PreTrainedModel") -> Iterator[Linear]:
    """Yield the layers of the model that can carry a LoRA, without the head.

    `spared` are layers outside the decoder; layers that route tokens to experts, where a small
    change has large effects; layers whose weights are read without a call, so that a LoRA would
    have no effect; and layers whose names PEFT takes for experts'.
    """
    modules = dict(model.named_modules())
    decoder = set(decoder_of(model).modules())
    head = model.get_output_embeddings()
    mixed = any(name.endswith(EXPERTS) for name in modules)
    experts = _names_of_experts(model.config.model_type) if mixed else frozenset()
    for name, module in modules.items():
        if module is head or (sizes := sizes_of(module)) is None:
            continue
        parent, _, last = name.rpartition(".")
        kinds = type(module).__name__.lower(), type(modules[parent]).__name__.lower()
        spared = module not in decoder or last in experts or _routes(last, kinds)
        spared = spared or _is_read(last, kinds[1])
        yield Linear(name=name, inputs=sizes[0], outputs=sizes[1], spared=spared)


def sizes_of(module: "nn.Module") -> tuple[int, int] | None:
    """Return the inputs and outputs of a linear layer; None for any other module."""
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    if isinstance(module, Conv1D):
        return module.nx, module.nf
    return (module.in_features, module.out_features) if isinstance(module, nn.Linear) else None


def _routes(name: str, kinds: tuple[str, str]) -> bool:
    """Return whether a layer, by its own and its parent's class, routes to experts."""
    if any("router" in kind or kind.endswith("gating") for kind in kinds):
        return True
    return name in ("router", "shared_expert_gate") or (name == "gate" and "moe" in kinds[1])


def _is_read(name: str, parent: str) -> bool:
    """Return whether a layer belongs to a Mamba mixer, whose kernels read its weights directly."""
    return name in ("dt_proj", "out_proj") and ("mixer" in parent or "mamba" in parent)


def _names_of_experts(kind: str) -> frozenset[str]:
    """Return the names that PEFT takes for the experts of a type of model, on any layer.

    They were layers once and are parameters now, and PEFT loads old adapters for them.
    """
    try:
        from peft.utils import transformers_weight_conversion as conversion
    except ImportError:  # a release of PEFT without such names
        return frozenset()
    family = getattr(conversion, "_MODEL_TO_CONVERSION_PATTERN", {}).get(kind, "")
    return frozenset(getattr(conversion, "_MOE_TARGET_MODULE_MAPPING", {}).get(family, ()))
