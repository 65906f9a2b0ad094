"""Plans of a base in 8 or 4 bits."""

import pytest
from transformers import Qwen3Config

from tests.helpers.machines import machine
from unstable.config import ConfigError, load
from unstable.engines.needs import NEEDS
from unstable.models.shape import shape_of
from unstable.planning.memory import weight_bytes
from unstable.planning.plan import plan

GB = 1e9
LIBRARIES = {"torchao": "0.18.0", "bitsandbytes": "0.50.2"}
OPTIONS = {"model.name": "smollm2-135m", "model.quantize": "4bit"}


def test_linear_layers_alone_are_counted_in_fewer_bits() -> None:
    """The shape of Qwen3-8B."""
    shape = shape_of(
        Qwen3Config(
            vocab_size=151936,
            hidden_size=4096,
            intermediate_size=12288,
            num_hidden_layers=36,
            num_attention_heads=32,
            num_key_value_heads=8,
            head_dim=128,
            tie_word_embeddings=False,
        )
    )
    kinds = ("none", "8bit", "4bit")
    sizes = [round(weight_bytes(shape, "bfloat16", kind) / GB, 1) for kind in kinds]
    assert sizes == [16.4, 9.6, 6.2]


def test_what_is_not_installed_is_named_before_a_model_is_loaded() -> None:
    bare = {"torch": "2.13.0", "vllm": "0.32.0"}
    with pytest.raises(ConfigError, match="bitsandbytes is not installed.*unstable.quantize"):
        plan(load("default", OPTIONS), [machine(packages=bare)], NEEDS)
    own = bare | LIBRARIES
    plan(load("default", OPTIONS), [machine(packages=own)], NEEDS)
    with pytest.raises(ConfigError, match="takes a plugin in vLLM 0.32.0; run: pip install"):
        plan(load("default", OPTIONS), [machine(1, packages=own)], NEEDS)
    for packages in (own | {"vllm-bnb-plugin": "0.0.3"}, own | {"vllm": "0.27.1"}):
        chosen = plan(load("default", OPTIONS), [machine(1, packages=packages)], NEEDS)
        assert chosen.engine == "vllm"
