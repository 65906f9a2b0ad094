"""Machines by a name or a file, and the models whose sizes are known without a network."""

import json
from pathlib import Path

import pytest

from tests.helpers.machines import QWEN
from tests.helpers.rows import every_row
from unstable.cli import run
from unstable.config import ConfigError, ModelConfig
from unstable.models.known import KNOWN
from unstable.models.shape import read_shape
from unstable.planning.elsewhere import machine_named

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


@every_row("name", KNOWN)
def test_a_known_model_has_as_many_parameters_as_its_page_says(name: str) -> None:
    assert read_shape(ModelConfig(name=name)).parameters == PARAMETERS[name]


def test_a_known_model_is_what_its_own_config_says() -> None:
    assert read_shape(ModelConfig(name="Qwen/Qwen3-1.7B")) == read_shape(
        ModelConfig(name=str(QWEN))
    )
    written = json.loads((QWEN / "config.json").read_text(encoding="utf-8"))
    known = KNOWN["Qwen/Qwen3-1.7B"]
    assert {key: written[key] for key in known} == dict(known)


@every_row(
    ("name", "cards", "cores"),
    [
        ("h200", ["NVIDIA H200"], 16),
        ("8xH100", ["NVIDIA H100"] * 8, 128),
        ("4x24gb", ["a card of 24 GB"] * 4, 32),
        ("1xl4", ["NVIDIA L4"], 8),
    ],
)
def test_a_machine_has_the_cards_of_its_name(name: str, cards: list[str], cores: int) -> None:
    there = machine_named(name)
    assert [gpu.name for gpu in there.usable_gpus] == cards
    assert [gpu.id for gpu in there.gpus] == [str(index) for index in range(len(cards))]
    assert there.cores == cores and there.has_vllm
    assert there.cuda_problem is None and there.build_problem is None


def test_a_machine_is_what_its_file_says(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "cores: 24\nmemory: 96\ncards:\n"
        "  - {name: NVIDIA RTX A6000, memory: 48, compute: 8.6, count: 2}\n"
        "  - {name: Tesla T4, memory: 16, compute: 7.5}\n"
    )
    there = machine_named(str(path))
    assert (there.cores, there.memory_bytes) == (24, 96_000_000_000)
    assert [gpu.total_bytes for gpu in there.gpus] == [48_000_000_000] * 2 + [16_000_000_000]
    assert [gpu.bfloat16 for gpu in there.gpus] == [True, True, False]
    path.write_text("cores: 4\nmemory: 8\n")
    assert machine_named(str(path)).gpus == ()


@every_row(
    ("text", "words"),
    [
        ("cores: 4\n", "memory is missing"),
        ("cores: 4\nmemory: 8\ncard: []\n", "unknown key 'card'; did you mean 'cards'"),
        ("cores: 4\nmemory: 8\ncards: [{memory: big}]\n", "cards.0.memory = 'big'"),
        ("- 4\n", "holds no machine"),
        ("cores: [\n", "not a config in YAML"),
    ],
)
def test_a_mistake_in_a_machines_file_is_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="--machine = ") as raised:
        machine_named(str(path))
    assert words in str(raised.value) and "\n" not in str(raised.value)


@every_row("name", ["8xh10", "h200x8", "0xh100", "0gb", "", "two cards", "-1"])
def test_what_is_no_machine_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="--machine = "):
        machine_named(name)


def test_the_doctor_plans_for_a_machine_that_is_not_here(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--config", "qwen3_24gb", "--model", "Qwen/Qwen3-4B", "--games.0.env", "Nim-v0"]
    assert run(["doctor", "--machine", "4x24gb", *options]) == 0
    printed = capsys.readouterr().out
    for words in ("GPU 3: a card of 24 GB", "vllm engine", "weights 8.04", "on Nim-v0, KuhnPoker"):
        assert words in printed
    assert "packages" not in printed
    with pytest.raises(ConfigError, match="'--machine': doctor RUN_DIR takes nothing else"):
        run(["doctor", "outputs/x", "--machine", "h200"])
