"""Preparation of a config for a run on this machine: what is checked, what is decided."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.machines import LARGE, SMALL, machine
from tests.helpers.models import random_adapter
from unstable.commands import evaluate, prepare
from unstable.commands.session import make_folder
from unstable.commands.sft import fine_tuned
from unstable.config import ConfigError, RunConfig, load, parse
from unstable.datasets.examples import FineTuning
from unstable.engines.kinds import NEEDS
from unstable.models.adapters import write_adapter
from unstable.models.base import load_model
from unstable.planning.machine import LOOPBACK, Machine, Placement
from unstable.planning.plan import plan
from unstable.records.folder import RunFolder

OF_NO_MACHINE = {
    *("games.0.events", "games.0.parser", "groups.size", "sampling.moves", "tracking.dashboard"),
    *("learner.micro_batch_size", "sampling.thoughts.tags"),
    "buffer.rewards.0.judged",
}
"""Fields whose auto depends on the game, the algorithm, the terminal, the learner's device, the
tokenizer or the reward term."""


def autos(value: object, path: str = "") -> Iterator[str]:
    """Paths of all fields that are left to be decided."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from autos(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from autos(inner, f"{path}.{index}")
    elif value == "auto":
        yield path


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A function that prepares on a machine that is not here, where no adapter is shipped."""
    monkeypatch.setattr(prepare, "LORA_FOLDER", tmp_path / "lora_ckpt")

    def prepared(config: RunConfig, here: Machine, *, learner: bool = True) -> prepare.Resolved:
        monkeypatch.setattr(prepare, "this_machine", lambda: here)
        return prepare.prepare(config, learner=learner)

    return prepared


@pytest.mark.parametrize(
    "here, options",
    [
        (machine(), SMALL),
        (machine(cores=1, memory_bytes=6_000_000_000, free_bytes=5_000_000_000), SMALL),
        (machine(bfloat16=False), SMALL | {"actors.num": 3}),
        (machine(1), LARGE),
        (machine(1), LARGE | {"loop.mode": "sync"}),
        (machine(2, packages={"torch": "2.13.0"}), SMALL | {"actors.engine": "embedded"}),
        (machine(2, 12.0), LARGE),
        (machine(4, 80.0), LARGE | {"learner.num": 2}),
    ],
)
@pytest.mark.parametrize("learner", [True, False])
def test_autos_are_resolved(here: Machine, options: dict[str, Any], learner: bool, on: Any) -> None:
    config = load("default", options)
    assert len(set(autos(config.model_dump()))) > 10  # many fields are auto
    first = on(config, here, learner=learner)
    assert set(autos(first.config.model_dump())) == OF_NO_MACHINE
    assert (first.machine, first.plan) == (here, plan(config, [here], NEEDS, learner=learner))
    assert on(first.config, here, learner=learner).config == first.config


def test_explicit_settings_are_kept(on: Any) -> None:
    asked = {
        **{"model.dtype": "float32", "model.init": "somewhere", "buffer.capacity": 999},
        **{"actors.num": 3, "actors.games_in_flight": 5, "loop.mode": "sync"},
        **{"learner.gradient_checkpointing": "on", "learner.micro_batch_tokens": 4000},
    }
    config = on(load("default", SMALL | asked), machine()).config
    for path, value in asked.items():
        section, _, name = path.partition(".")
        assert getattr(getattr(config, section), name) == value


def test_multi_gpu_run_is_evaluated_on_one_gpu(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = tmp_path / "run"
    data = {
        "model": {"name": str(tiny_folder), "dtype": "bfloat16", "init": "fresh"},
        "actors": {"num": 6, "engine": "vllm", "gpu_memory": 0.9, "share_gpu": "off"},
        "learner": {"num": 2, "micro_batch_tokens": 10**9},
        "tracking": {"run_dir": str(run_dir)},
    }
    config = parse(data)
    checkpoint = make_folder(config).checkpoint(3)
    checkpoint.mkdir(parents=True)
    write_adapter(random_adapter(load_model(config.model), "3", seed=1), checkpoint)
    evaluated: list[tuple[str, tuple[Placement, ...]]] = []

    def run_on_actors(
        resolved: prepare.Resolved, folder: RunFolder, version: int, *_: object
    ) -> tuple[list[Any], dict[str, Any], list[Any]]:
        assert version == 3
        evaluated.append((resolved.config.actors.engine, resolved.plan.actors))
        return [], {}, []

    monkeypatch.setattr(evaluate, "run_on_actors", run_on_actors)
    for here in (machine(1), machine()):
        monkeypatch.setattr(prepare, "this_machine", lambda here=here: here)
        evaluate.evaluate(run_dir, None, {})
    assert evaluated == [
        ("vllm", (Placement(LOOPBACK, ("0",)),)),
        ("embedded", (Placement(LOOPBACK),) * 8),
    ]


@pytest.mark.parametrize("algorithm", [{"name": "nowhere:Mine"}, {"target": "nowhere:Mine"}])
def test_unknown_algorithm_is_rejected_before_loading(algorithm: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"^learner.algorithm.(name|target) = 'nowhere:Mine'"):
        prepare.check(parse({"learner": {"algorithm": algorithm}}))


def test_ray_address_of_the_environment_is_ignored(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = machine()
    monkeypatch.setattr(prepare, "this_machine", lambda: here)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert prepare.machines_for(parse({})) == [here]
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
    assert prepare.machines_for(parse({})) == [here]
    assert "RAY_ADDRESS is set but ignored" in capsys.readouterr().err


@pytest.mark.parametrize("opponents", [["past"], ["base"], ["random", "past"]])
def test_evaluation_omits_training_opponents(opponents: list[str]) -> None:
    """An evaluation's config resolves like a run's and has only the evaluation's opponents."""
    draw = {"self": 0, "past": 0, "fixed": 1}
    given = {"eval": {"opponents": opponents, "every": 0}, "opponents": {"draw": draw}}
    config = evaluate._evaluated(parse({**given, "guard": {"action": ["opponents"]}}))
    read = RunConfig.model_validate(config.model_dump())
    assert [each.key for each in read.opponents.fixed] == [n for n in opponents if n == "random"]
    assert (read.eval.opponents, read.eval.every) == (opponents, 1)


def test_configs_that_commands_derive_resolve_and_keep_the_expert() -> None:
    """The settings of a run's training need not be valid for teaching, solving or replaying."""
    config = parse(
        {
            "opponents": {"draw": {"fixed": 0.5}, "fixed": [{"kind": "rules", "name": "mine"}]},
            "sampling": {"moves": "expert", "expert": "mine"},
            "learner": {"algorithm": {"name": "grpo"}},
            "buffer": {"rewards": [{"term": "outcome"}, {"term": "expert"}]},
            "groups": {"size": 32, "drop_tied": True},
            "guard": {"action": ["opponents"]},
        }
    )
    alone = prepare.alone(config)
    assert [each.key for each in alone.opponents.fixed] == ["mine"]
    assert evaluate._evaluated(config).fixed_opponents["mine"] == config.fixed_opponents["mine"]
    prepare.prepare(alone.updated({"learner.batch_size": 16, "opponents.fixed": []}))
    task = FineTuning(train=[], held_out=[], epochs=1, patience=1, batch_size=8, seed=0)
    RunConfig.model_validate(fine_tuned(config, task).model_dump())  # as --resume reads it
