"""Shapes of plain decoders, computed from config.json alone, since importing transformers is slow.

A plain decoder is one of the types below without biases. `shape.py` reads the shapes of all others.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from unstable.models.known import KNOWN
from unstable.models.sizes import Linear, ModelShape
from unstable.models.tiny import SHIPPED
from unstable.models.wheels import WHEELS
from unstable.records.files import read_small_json

_SIZES = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
    "max_position_embeddings",
)
_BIASES = ("attention_bias", "mlp_bias")
_OTHERS = ("quantization_config", "rope_scaling", "auto_map")
"""Entries that may change the shape or the maximum length."""


@dataclass(frozen=True, slots=True)
class _Norms:
    """RMS norms of a layer."""

    wide: int  # of the hidden size
    of_heads: bool  # queries and keys have one each, of the size of a head


_NORMS = {"llama": _Norms(2, False), "qwen3": _Norms(2, True), "gemma3_text": _Norms(4, True)}
"""By type of model; without an entry a model is not plain."""


def plain_type(name: str) -> str | None:
    """Return the type of a model that `plain_shape` knows, else None."""
    config = _config(name)
    return None if config is None else config["model_type"]


def plain_shape(name: str) -> ModelShape | None:
    """Return the shape of a plain decoder; None for another model, or without sizes in a config."""
    config = _config(name)
    if config is None:
        return None
    norms = _NORMS[config["model_type"]]
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    layers = config["num_hidden_layers"]
    head_size = config.get("head_dim") or hidden // config["num_attention_heads"]
    linears = tuple(_linears(config, head_size))
    of_norms = layers * (norms.wide * hidden + 2 * norms.of_heads * head_size) + hidden
    embeddings = (1 if config["tie_word_embeddings"] else 2) * vocabulary * hidden
    return ModelShape(
        parameters=sum(each.inputs * each.outputs for each in linears) + of_norms + embeddings,
        layers=layers,
        hidden=hidden,
        intermediate=config["intermediate_size"],
        queries=config["num_attention_heads"] * head_size,
        keys=config["num_key_value_heads"] * head_size,
        vocabulary=vocabulary,
        max_length=config["max_position_embeddings"],
        normalized_heads=norms.of_heads,
        has_experts=False,
        linears=linears,
    )


def _linears(config: Mapping[str, Any], head_size: int) -> Iterator[Linear]:
    """Yield the layers that can carry a LoRA, in the model's order."""
    hidden, between = config["hidden_size"], config["intermediate_size"]
    queries, keys = (
        config[name] * head_size for name in ("num_attention_heads", "num_key_value_heads")
    )
    of_layer = {
        "self_attn.q_proj": (hidden, queries),
        "self_attn.k_proj": (hidden, keys),
        "self_attn.v_proj": (hidden, keys),
        "self_attn.o_proj": (queries, hidden),
        "mlp.gate_proj": (hidden, between),
        "mlp.up_proj": (hidden, between),
        "mlp.down_proj": (between, hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        for name, (inputs, outputs) in of_layer.items():
            yield Linear(name=f"model.layers.{layer}.{name}", inputs=inputs, outputs=outputs)


@lru_cache(maxsize=8)
def _config(name: str) -> Mapping[str, Any] | None:
    """Return a plain decoder's config with all sizes; None for any other model."""
    folder = SHIPPED.get(name) or Path(name).expanduser()
    known = KNOWN.get(name) if name in WHEELS or not folder.is_dir() else None
    config = known or read_small_json(folder / "config.json") or {}
    kind, rope = config.get("model_type"), config.get("rope_parameters") or {}
    sizes = [config.get(size) for size in _SIZES]
    if kind != "llama" or config.get("head_dim") is not None:  # Llama's default is hidden / heads
        sizes.append(config.get("head_dim"))
    is_plain = (
        isinstance(kind, str)
        and kind in _NORMS
        and all(type(size) is int and size > 0 for size in sizes)
        and type(config.get("tie_word_embeddings")) is bool
        and not any(config.get(entry) for entry in (*_BIASES, *_OTHERS))
        and isinstance(rope, dict)
        and all(rope.get(key) in (None, "default") for key in ("rope_type", "type"))
    )
    return config if is_plain else None
