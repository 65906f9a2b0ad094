"""Sections of the algorithms: built-in ones, errors, and options that change the algorithm."""

import json
import re
from pathlib import Path

from tests.helpers.mistakes import line_of
from tests.helpers.rows import every_row
from unstable.config import ALGORITHMS, LearnerConfig, dump, load, parse
from unstable.config.plugins import registered
from unstable.learners.algorithms import BUILT_IN, named_algorithm

DOCS = Path(__file__).parent.parent.parent / "docs" / "algorithms.md"


def test_importance_floor_is_ignored_without_mask():
    algorithm = {"name": "grpo", "importance": "none", "importance_cap": 0.4}
    assert parse({"learner": {"algorithm": algorithm}}).learner.algorithm.importance_cap == 0.4


def test_removed_field_of_earlier_runs_is_accepted_at_its_default():
    def changed(correction):
        algorithm = {"name": "vrpo", "critic": {"correction": correction}}
        return {"learner": {"algorithm": algorithm}}

    assert "correction" not in dump(parse(changed(0.0)))
    assert "unknown key 'correction'" in line_of(parse, changed(0.5))


def test_every_algorithm_is_implemented_and_documented():
    assert sorted([*BUILT_IN, *registered("algorithms")]) == sorted(ALGORITHMS)
    assert all(named_algorithm(name) for name in ALGORITHMS)
    text = DOCS.read_text(encoding="utf-8")
    assert re.findall(r"^\| `([^`:]+)` \|", text, re.MULTILINE) == list(ALGORITHMS)
    for name in ALGORITHMS:
        config = parse({"learner": {"algorithm": {"name": name}}})
        assert config.learner.algorithm.name == name


def test_changing_algorithm_drops_specific_fields(tmp_path):
    chosen = {"learner.algorithm.clip_high": 0.28, "learner.algorithm.name": "grpo"}
    config = load("default", chosen)
    assert config.learner.algorithm.clip_high == 0.28
    (tmp_path / "grpo.yaml").write_text(dump(config), encoding="utf-8")
    again = load(str(tmp_path / "grpo.yaml"), {"learner.algorithm.name": "grpo", "seed": 0})
    assert again == config
    back = load(str(tmp_path / "grpo.yaml"), {"learner.algorithm.name": "reinforce"})
    assert back.learner == LearnerConfig()


def test_changing_algorithm_drops_fields_without_effect():
    """A run of `tiny_nim` sets old_logprobs, and rft has no old policy."""
    assert load("tiny_nim").learner.algorithm.old_logprobs == "engine"
    for name in ("rft", "a2c", "reinforce", "dpo"):
        assert load("tiny_nim", {"learner.algorithm.name": name}).learner.algorithm.name == name


def test_changing_algorithm_keeps_shared_fields(tmp_path):
    shared = {"kl_reward": 0.1, "kl_loss": 0.2, "importance_cap": 3.0, "reward_clip": [-1.0, 0.5]}
    file = tmp_path / "config.yaml"
    algorithm = {"name": "grpo", "clip_high": 0.28, "target": "mine:Mine"}
    file.write_text(json.dumps({"learner": {"algorithm": algorithm | shared}}), encoding="utf-8")
    chosen = {"learner.algorithm.name": "rloo", "learner.algorithm.kl_loss": 0.0}
    algorithm = {"name": "rloo"} | shared | {"kl_loss": 0.0}
    assert load(str(file), chosen) == parse({"learner": {"algorithm": algorithm}})


@every_row(
    "algorithm, message",
    ({"name": "grpoo"}, ".name = 'grpoo': unknown algorithm; did you mean 'grpo'?"),
    ({"name": "grpo", "decays": 0.5}, ": unknown key 'decays'; did you mean 'decay'?"),
    ({"name": "rloo", "clip_low": -1}, ".clip_low = -1: input should be greater than 0"),
    (
        {"name": "cispo", "importance": "mask", "importance_floor": 3},
        ".importance_floor = 3.0: not below ",
    ),
    (
        {"name": "mine:Mine", "reward_clip": [0, 0]},
        ".reward_clip = [0.0, 0.0]: lower bound not below the upper; give the lower bound first",
    ),
    ({"name": "grpo", "args": {"a": 1}}, ".args = {'a': 1}: only a custom class reads args; "),
    ("grpo", " = 'grpo': not a section; write keys and values below it"),
)
def test_algorithm_errors_name_the_field(algorithm, message):
    said = line_of(parse, {"learner": {"algorithm": algorithm}})
    assert said.startswith("learner.algorithm" + message)
