"""Sweep files: settings by a grid, a list or draws; invalid files reported in one line."""

import itertools
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.mistakes import line_of
from tests.helpers.rows import every_row
from unstable.config.reading import dump_section
from unstable.studies.sweep.config import SweepConfig, read_sweep
from unstable.studies.sweep.trials import measure_of, trials_of

PATHS = st.sampled_from(["learner.epochs", "seed_of.epochs", "eval.games", "model.name", "x"])
TEXTS = st.text("ab -1", max_size=4)
VALUES = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-9, 9) | TEXTS


def read(text: str) -> SweepConfig:
    return read_sweep(text, "a.yaml")


@given(
    grid=st.dictionaries(PATHS, st.lists(VALUES, min_size=1, max_size=3), min_size=1, max_size=3),
    seeds=st.lists(st.integers(0, 9), min_size=1, unique=True),
)
def test_written_sweep_is_read_back(grid: dict[str, Any], seeds: list[int]) -> None:
    sweep = SweepConfig(grid=grid, seeds=seeds, common={"a": None})
    assert read(dump_section(sweep)) == sweep


@given(st.dictionaries(PATHS, st.sets(st.integers(0, 9), min_size=1), min_size=1, max_size=3))
def test_grid_yields_every_combination_in_order(grid: dict[str, set[int]]) -> None:
    listed = {path: sorted(values) for path, values in grid.items()}
    settings = SweepConfig(grid=listed).all_settings()
    assert [[*each.fields.values()] for each in settings] == [
        [*each] for each in itertools.product(*listed.values())
    ]
    assert len({each.name for each in settings}) == len(settings)


def test_settings_are_named_by_their_fields() -> None:
    text = "grid: {learner.learning_rate: [1e-3, 2.0e-3], config: [tiny, tiny_nim]}"
    names = [each.name for each in read(text).all_settings()]
    assert names[0] == "learning_rate-0.001+config-tiny"
    assert names[-1] == "learning_rate-0.002+config-tiny_nim"
    (first, *_) = read(text).all_settings()
    assert first.config == "tiny" and first.fields == {"learner.learning_rate": 0.001}
    both = read("grid: {a.size: [1], b.size: [2]}").all_settings()
    assert both[0].name == "a.size-1+b.size-2"
    listed = read("settings: [{}, {name: mine, x: {a: 1}}]\ncommon: {y: 2}").all_settings()
    assert [(each.name, each.fields) for each in listed] == [
        ("base", {"y": 2}),
        ("mine", {"y": 2, "x": {"a": 1}}),
    ]
    assert [each.name for each in read("seeds: [1]").all_settings()] == ["base"]


def test_metric_of_a_cooperative_game_has_no_opponent() -> None:
    games = [{"env": "Codenames-v0", "seats": 4, "teams": [[0, 1, 2, 3]], "max_turns": 81}]
    trials = trials_of(read(f"config: tiny\nsettings: [{{games: {json.dumps(games)}}}]"))
    measure = measure_of(read("{seeds: [1]}"), trials[0].config)
    assert measure.metric == "eval/Codenames-v0/alone/sampled/score"


RANDOM = """
random:
  count: {count}
  seed: {seed}
  draw:
    learner.learning_rate: {{low: 1.0e-4, high: 1.0e-2, log: true}}
    learner.epochs: {{low: 1, high: 4, whole: true}}
    learner.algorithm.name: [ppo, rloo]{more}
"""


@given(count=st.integers(1, 12), seed=st.integers(0, 99))
def test_random_settings_are_seeded_and_independent_of_count(count: int, seed: int) -> None:
    drawn = read(RANDOM.format(count=count, seed=seed, more="")).all_settings()
    more = "\n    x: [1, 2, 3]"
    further = read(RANDOM.format(count=count + 1, seed=seed, more=more)).all_settings()
    for one, other in zip(drawn, further, strict=False):
        assert one.name == other.name and one.fields.items() <= other.fields.items()
    for fields in (each.fields for each in drawn):
        assert 1e-4 <= fields["learner.learning_rate"] <= 1e-2
        assert fields["learner.epochs"] in (1, 2, 3, 4)


def test_log_draws_are_symmetric_around_the_geometric_mean() -> None:
    drawn = read(RANDOM.format(count=400, seed=0, more="")).all_settings()
    below = sum(each.fields["learner.learning_rate"] < 1e-3 for each in drawn)
    assert 150 < below < 250  # 200 +- 5 standard deviations


@every_row(
    "text, said",
    ("gird: {a: [1]}", "a.yaml: unknown key 'gird'; did you mean 'grid'?"),
    ("format: 3", "format = 3: unsupported"),
    ("3", "not a mapping; write keys such as grid:"),
    ("grid: {}", "grid = {}: dictionary should have at least 1 item"),
    ("grid: {a: []}", "grid.a = []: list should have at least 1 item"),
    ("settings: []", "settings = []: list should have at least 1 item"),
    ("seeds: []", "seeds = []: list should have at least 1 item"),
    ("seeds: [1, 1]", "seeds = [1, 1]: duplicate seed; remove it"),
    ("grid: {a: [1]}\nsettings: [{a: 2}]", "grid and settings: mutually exclusive; keep one"),
    ("grid: {seed: [1]}", "grid.seed: set by seeds; remove it"),
    ("settings: [{tracking.run_dir: x}]", "settings.0.tracking.run_dir: the sweep sets a fo"),
    ("grid: {a: [1, 1]}", "duplicate setting name 'a-1'; remove one, or set unique names in"),
    ("settings: [{name: a}, {name: a, x: 1}]", "duplicate setting name 'a'"),
    ("settings: [{name: a/b}]", "name = 'a/b': use at most"),
    ("random: {count: 3, draw: {a: [1, 2]}}", "random.count = 3: only 2 distinct settings"),
    ("random: {count: 3, draw: {}}", "random.draw = {}: dictionary should have at least 1"),
    ("random: {count: 3, draw: {a: {low: 2, high: 1}}}", "low = 2, high = 1: set low < high"),
    ("random: {count: 1, draw: {a: {low: 0, high: 1, log: true}}}", "set 0 < low < high"),
    ("stop: {}", "stop.rungs: missing; set it"),
    ("stop: {rungs: [4, 2]}", "stop.rungs = [4, 2]: not strictly ascending; sort"),
    ("stop: {rungs: [1], needs: 2}", "stop.needs = 2: only 1 seeds; set it to at most 1"),
    ("stop: {rungs: [1], keep: 1.5}", "stop.keep = 1.5"),
    ("at_once: 0", "at_once = 0"),
    ("goal: most", "goal = 'most'"),
)
def test_invalid_file_is_reported_in_one_line(text: str, said: str) -> None:
    assert said in line_of(lambda: read(text).all_settings())
