"""Plans of a base in 8 or 4 bits, and what is refused before one is loaded."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from bench.capacity import machine_named
from tests.helpers.machines import machine
from tests.helpers.mistakes import refused
from tests.helpers.rows import every_row
from unstable.config import DISTRIBUTION, ConfigError, ModelConfig, load
from unstable.engines.kinds import NEEDS
from unstable.models.shape import read_shape
from unstable.planning.memory import weight_bytes
from unstable.planning.needs import QUANTIZE_LIBRARIES
from unstable.planning.plan import Plan, plan

GB = 1e9
SHAPE = read_shape(ModelConfig(name="Qwen/Qwen3-8B"))
BARE = {"torch": "2.13.0", "vllm": "0.32.0"}
ALL = BARE | {"torchao": "0.18.0", "bitsandbytes": "0.50.2", "vllm-bnb-plugin": "0.0.3"}
OLD_VLLM = BARE | {"vllm": "0.27.1", "bitsandbytes": "0.50.2"}
NO_PLUGIN = {name: version for name, version in ALL.items() if "plugin" not in name}
NOT_THERE = f"is not installed; run: pip install '{DISTRIBUTION}.quantize.', or set model.quantize"


def planned(kind: str, packages: dict[str, str], cards: int = 0, **options: object) -> Plan:
    model = {"model.name": "smollm2-135m", "model.quantize": kind}
    return plan(load("default", model | options), [machine(cards, packages=packages)], NEEDS)


def test_only_linear_layers_are_counted_as_quantized() -> None:
    sizes = [weight_bytes(SHAPE, "bfloat16", kind) / GB for kind in ("none", "8bit", "4bit")]
    assert [round(size, 1) for size in sizes] == [16.4, 9.6, 6.2]


@every_row(
    "kind, packages, cards, options, message",
    ("8bit", BARE, 0, {}, f"'8bit': torchao {NOT_THERE}"),
    ("4bit", BARE, 1, {}, f"'4bit': bitsandbytes {NOT_THERE}"),
    ("8bit", ALL | {"torchao": "0.17.0"}, 0, {}, "torchao is 0.17.0, but must be >=0.18"),
    ("4bit", NO_PLUGIN, 1, {}, "vLLM 0.32.0 needs a plugin; run: pip install --no-deps vllm-bnb"),
    (
        "4bit",
        {**ALL, "vllm": "0.32.0+cpu"},
        0,
        {"actors.engine": "vllm", "model.dtype": "float32"},
        "bfloat16 with model.quantize = '4bit', .* 'float32'; set model.dtype to bfloat16",
    ),
)
def test_unsupported_quantization_is_one_line(kind, packages, cards, options, message):
    refused(message, planned, kind, packages, cards, **options)


@every_row(
    "kind, packages, cards, engine",
    ("none", BARE, 1, "vllm"),
    ("8bit", ALL, 1, "vllm"),
    ("4bit", ALL, 1, "vllm"),
    ("4bit", OLD_VLLM, 1, "vllm"),
    ("4bit", NO_PLUGIN, 0, "embedded"),
)
def test_supported_quantization_is_planned(kind, packages, cards, engine):
    assert planned(kind, packages, cards).engine == engine


def test_library_versions_match_the_packages_extra() -> None:
    file = Path(__file__).parent.parent.parent / "pyproject.toml"
    extra = tomllib.loads(file.read_text())["project"]["optional-dependencies"]["quantize"]
    asked = {each.name: each.specifier for each in map(Requirement, extra)}
    needed = {each.name: each.specifier for each in QUANTIZE_LIBRARIES.values()}
    assert asked.keys() == needed.keys()
    assert all({*specifier} <= {*asked[name]} for name, specifier in needed.items())


def test_8bit_plan_has_room_to_load_the_whole_base() -> None:
    """Qwen3-14B: 29.5 GB in bfloat16, 16.5 in 8 bits, 9.9 in 4."""
    options = {"model.name": "Qwen/Qwen3-14B", "learner.micro_batch_tokens": 2048}
    there = machine_named("4x24gb")
    with pytest.raises(ConfigError, match="an actor's engine needs 30.2 GB"):
        plan(load("qwen3_24gb", options | {"model.quantize": "8bit"}), [there], NEEDS)
    plan(load("qwen3_24gb", options | {"model.quantize": "4bit"}), [there], NEEDS)
