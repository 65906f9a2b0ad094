"""Size of a model's own cache, read from its config without any weights."""

import copy
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from unstable.config import ModelConfig
from unstable.models.shape import known_config, read_type, shape_of
from unstable.models.support import PACKED

if TYPE_CHECKING:
    from transformers import Cache, PretrainedConfig

_LENGTHS = (4, 8)  # tokens; shorter than any window


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSize:
    """Elements of a cache."""

    token: int  # bytes per token
    request: int  # extra bytes per request: states of convolutions and recurrences


def read_cache_size(model: ModelConfig) -> CacheSize | None:
    """Return the cache's size for a model that cannot be packed; None if it can be packed.

    Raises `ConfigError` if its config cannot be read.
    """
    return None if read_type(model) in PACKED else _read(model.name)


@lru_cache(maxsize=8)
def _read(name: str) -> CacheSize:
    return cache_size(known_config(name))


def cache_size(config: "PretrainedConfig") -> CacheSize:
    """Measure a cache that the model fills on torch's meta device, where nothing is computed.

    Zero for a model that takes no cache of transformers, which is served without one; keys and
    values of all layers for one that needs more than that device can do.
    """
    import torch
    from transformers import AutoModelForCausalLM, DynamicCache

    config = copy.deepcopy(config)
    config.pad_token_id = None  # disables the search for padding
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="eager"
        )
    takes = inspect.signature(model.forward).parameters
    name = next((name for name in ("past_key_values", "cache_params") if name in takes), None)
    if name is None:
        return CacheSize(token=0, request=0)
    sizes = []
    for length in _LENGTHS:
        cache = DynamicCache(config=config)
        ids = torch.zeros(1, length, dtype=torch.long, device="meta")
        try:
            with torch.inference_mode():
                model(input_ids=ids, use_cache=True, **{name: cache})
        except (AttributeError, TypeError, ValueError):  # unknown kind of cache
            return CacheSize(token=0, request=0)
        except (NotImplementedError, RuntimeError):
            shape = shape_of(config)
            return CacheSize(token=2 * shape.layers * shape.keys, request=0)
        sizes.append(sum(_elements(cache)))
    (short, long), (size, larger) = _LENGTHS, sizes
    token = (larger - size) // (long - short)
    return CacheSize(token=token, request=size - short * token)


def _elements(cache: "Cache") -> Iterator[int]:
    """Yield the number of elements of each tensor in the cache."""
    import torch

    for layer in cache.layers:
        for value in vars(layer).values():
            held: list[Any] = [*value.values()] if isinstance(value, dict) else [value]
            yield from (each.numel() for each in held if isinstance(each, torch.Tensor))
