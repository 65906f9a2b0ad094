"""The models whose sizes are known without a network."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.machines import QWEN
from tests.helpers.rows import every_row
from unstable.config import ModelConfig
from unstable.models.known import KNOWN
from unstable.models.plain import plain_shape
from unstable.models.shape import known_config, read_shape, shape_of
from unstable.models.tiny import SHIPPED

PARAMETERS = {
    "smollm2-135m": 134_515_008,
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "gemma3-270m": 268_098_176,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B": 1_720_574_976,
    "Qwen/Qwen3-4B": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
}
"""As the models' own pages count them."""


@every_row("name", *KNOWN)
def test_known_model_has_documented_parameters(name: str) -> None:
    assert read_shape(ModelConfig(name=name)).parameters == PARAMETERS[name]


def test_known_model_matches_its_config() -> None:
    assert read_shape(ModelConfig(name="Qwen/Qwen3-1.7B")) == read_shape(
        ModelConfig(name=str(QWEN))
    )
    written = json.loads((QWEN / "config.json").read_text(encoding="utf-8"))
    known = KNOWN["Qwen/Qwen3-1.7B"]
    assert {key: written[key] for key in known} == dict(known)


@every_row("name", "smollm2-135m", "gemma3-270m", "Qwen/Qwen3-0.6B", *SHIPPED)
def test_shape_from_sizes_alone_equals_the_built_models(name: str) -> None:
    assert plain_shape(name) == shape_of(known_config(name))


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "granite"},
        {"model_type": ["llama"]},
        {"model_type": "qwen3", "head_dim": None},
        {"attention_bias": True},
        {"mlp_bias": True},
        {"hidden_size": "64"},
        {"num_key_value_heads": None},
        {"tie_word_embeddings": None},
        {"rope_parameters": {"rope_type": "longrope"}},
        {"rope_parameters": {"type": "longrope"}},
        {"rope_parameters": ["longrope"]},
        {"quantization_config": {"quant_method": "awq"}},
    ],
    ids=str,
)
def test_other_config_is_left_to_transformers(change: dict[str, Any], tmp_path: Path) -> None:
    config = json.loads((SHIPPED["tiny"] / "config.json").read_text(encoding="utf-8"))
    for name, entries in (("plain", config), ("other", config | change)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(entries), encoding="utf-8")
    assert plain_shape(str(tmp_path / "plain")) == plain_shape("tiny")
    assert plain_shape(str(tmp_path / "other")) is None
