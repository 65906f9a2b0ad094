"""Cache size by config alone: it equals the size of the cache that a model fills."""

from typing import Any

import torch
from transformers import (
    DynamicCache,
    GPT2Config,
    Lfm2Config,
    Mamba2Config,
    Mamba2ForCausalLM,
    RwkvConfig,
)

from tests.helpers.rows import every_row
from unstable.models.cache_size import CacheSize, cache_size

HIDDEN, LAYERS, HEADS = 32, 2, 4


def test_cache_size_of_attention_and_convolutions() -> None:
    config = GPT2Config(n_embd=HIDDEN, n_layer=LAYERS, n_head=HEADS, vocab_size=50)
    assert cache_size(config) == CacheSize(token=2 * LAYERS * HIDDEN, request=0)
    sizes: dict[str, Any] = {"num_attention_heads": HEADS, "num_key_value_heads": 2}
    kinds = ["conv", "conv", "full_attention"]
    other = Lfm2Config(hidden_size=HIDDEN, num_hidden_layers=3, layer_types=kinds, **sizes)
    request = 2 * HIDDEN * other.conv_L_cache
    assert cache_size(other) == CacheSize(token=2 * HIDDEN // 2, request=request)


@every_row("length", 3, 30)
def test_cache_size_of_state_space_models(length: int) -> None:
    sizes: dict[str, Any]
    sizes = {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 2, "vocab_size": 50}
    config = Mamba2Config(hidden_size=HIDDEN, num_hidden_layers=LAYERS, **sizes)
    cache = DynamicCache(config=config)
    Mamba2ForCausalLM(config)(torch.ones(1, length, dtype=torch.long), cache_params=cache)
    states = [(layer.conv_states[0], layer.recurrent_states[0]) for layer in cache.layers]
    held = sum(int(state.numel()) for pair in states for state in pair if state is not None)
    assert cache_size(config) == CacheSize(token=0, request=held)


def test_unknown_cache_kind_has_size_zero() -> None:
    config = RwkvConfig(hidden_size=HIDDEN, num_hidden_layers=LAYERS, vocab_size=50)
    assert cache_size(config) == CacheSize(token=0, request=0)
