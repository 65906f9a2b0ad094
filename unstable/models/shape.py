"""A model's shape: what memory estimates need, read from its config without any weights."""

import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from unstable.config import AdapterConfig, AnyAdapter, ConfigError, ModelConfig
from unstable.models.base import load_config
from unstable.models.known import KNOWN

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A linear layer that can carry a LoRA, by its name within the model."""

    name: str
    inputs: int
    outputs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a decoder, in elements."""

    parameters: int  # tied weights counted once
    layers: int
    hidden: int
    intermediate: int
    queries: int  # width of all query heads together
    keys: int  # width of all key heads together
    vocabulary: int
    max_length: int  # tokens
    normalized_heads: bool  # queries and keys have norms of their own, as in Qwen3
    linears: tuple[Linear, ...]

    @property
    def linear_parameters(self) -> int:
        """Elements of all linear layers, which are those that can be quantized."""
        return sum(linear.inputs * linear.outputs for linear in self.linears)

    def lora_linears(self, targets: str | list[str]) -> list[Linear]:
        """The layers that `model.adapter.targets` names, by PEFT's rules."""
        if targets == "all-linear":
            return list(self.linears)
        if isinstance(targets, str):
            return [linear for linear in self.linears if re.fullmatch(targets, linear.name)]
        ends = tuple(f".{target}" for target in targets)
        return [linear for linear in self.linears if f".{linear.name}".endswith(ends)]

    def trained_parameters(self, adapter: AnyAdapter) -> int:
        """Elements of what is trained and travels as a version: a LoRA, or all weights."""
        return self.parameters if adapter == "none" else self.lora_parameters(adapter)

    def lora_parameters(self, adapter: AdapterConfig) -> int:
        """Elements of one adapter: A [rank, in] and B [out, rank] of each layer that it names."""
        chosen = self.lora_linears(adapter.targets)
        return adapter.rank * sum(linear.inputs + linear.outputs for linear in chosen)


def read_shape(model: ModelConfig) -> ModelShape:
    """The shape of the model; raises `ConfigError` where its config does not say."""
    return _read_shape(model.name)


@lru_cache(maxsize=8)
def _read_shape(name: str) -> ModelShape:
    from transformers import AutoConfig

    if name in KNOWN and not Path(name).is_dir():
        return shape_of(AutoConfig.for_model(**KNOWN[name]))
    config = load_config(ModelConfig(name=name))
    try:
        return shape_of(config)
    except (AttributeError, ValueError) as error:
        raise ConfigError(
            f"model.name = {name!r}: is not a decoder of Llama's kind "
            f"({str(error).splitlines()[0]}); use one, such as Llama, Mistral or Qwen3"
        ) from None


def weight_shapes(model: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Shapes of all weights of the model by their names, tied ones once."""
    own = _on_meta(load_config(model)).named_parameters()
    return {name: tuple(parameter.shape) for name, parameter in own}


def _on_meta(config: "PretrainedConfig") -> "PreTrainedModel":
    """A model with this config on torch's meta device, which holds no data."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


def shape_of(config: "PretrainedConfig") -> ModelShape:
    """The shape of a model with this config."""
    import torch

    model = _on_meta(config)
    head = model.get_output_embeddings()
    text = config.get_text_config()
    head_size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    return ModelShape(
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        intermediate=text.intermediate_size,
        queries=text.num_attention_heads * head_size,
        keys=text.num_key_value_heads * head_size,
        vocabulary=text.vocab_size,
        max_length=text.max_position_embeddings,
        normalized_heads=any(name.endswith("q_norm") for name, _ in model.named_modules()),
        linears=tuple(
            Linear(name=name, inputs=module.in_features, outputs=module.out_features)
            for name, module in model.named_modules()
            if isinstance(module, torch.nn.Linear) and module is not head
        ),
    )
