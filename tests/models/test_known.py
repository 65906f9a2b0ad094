"""The models whose sizes are known without a network."""

import json

from tests.helpers.machines import QWEN
from tests.helpers.rows import every_row
from unstable.config import ModelConfig
from unstable.models.known import KNOWN
from unstable.models.shape import read_shape

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
