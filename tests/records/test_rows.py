"""Metric names and displayed numbers: one place builds each, and names are parsed back."""

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.rows import every_row
from unstable.records.reading import by_key, joined, measured
from unstable.records.text import bounds, duration, fixed, number, percent, signed
from unstable.types.metrics import (
    EvalKey,
    ExploitKey,
    MetricKey,
    RatingKey,
    VersusKey,
)

KINDS: dict[type[MetricKey], int] = {EvalKey: 3, ExploitKey: 1, RatingKey: 1, VersusKey: 1}
NAMES = st.text(st.characters(codec="utf-8") | st.sampled_from("/:"))


@given(st.sampled_from([*KINDS]), st.lists(NAMES, min_size=3, max_size=3), NAMES)
def test_metric_name_round_trip(kind: type[MetricKey], names: list[str], figure: str) -> None:
    key = kind(*names[: KINDS[kind]])
    assert kind.parse(key.name(figure)) == (key, figure)
    others = [other for other in KINDS if other is not kind]
    assert all(other.parse(key.name(figure)) is None for other in others)


@every_row("name", "eval", "eval/Nim-v0/random/score", "evals/a/b/c/score", "")
def test_other_names_are_not_parsed_as_evaluations(name: str) -> None:
    assert EvalKey.parse(name) is None


def test_figures_are_grouped_by_key() -> None:
    greedy, sampled = (EvalKey("Nim-v0", "random", mode) for mode in ("greedy", "sampled"))
    rows: list[dict[str, float | None]] = [
        {"version": 1, greedy.name("score"): 0.25, sampled.name("score"): None, "learn/loss": 1.0},
        {"version": 2, greedy.name("score"): 0.5, greedy.name("low"): 0.375},
        {"version": 3, sampled.name("score"): 0.75},
    ]
    found = by_key(measured(EvalKey, rows, "score"))
    assert [(key, [each.version for each in found[key]]) for key in found] == [
        (greedy, [1, 2]),
        (sampled, [3]),
    ]
    assert found[greedy][-1].figures == {"score": 0.5, "low": 0.375}


@given(st.floats(-1e-13, 1e-13))
def test_rounding_errors_are_shown_as_0(value: float) -> None:
    assert (number(value), percent(value)) == ("0", "0 %")
    assert fixed(value, 3) == signed(value, 3) == bounds(value, value) == "0.000"


@given(st.floats(0, 1e6))
def test_duration_has_at_most_two_units(seconds: float) -> None:
    assert len(duration(seconds).split()) in (2, 4)


def test_evaluation_row_is_merged_into_its_version() -> None:
    """Wherever it comes, and whether or not that version had figures of one before."""
    whole = [{"version": version, "time": version, "time/total": 1.0} for version in range(4)]
    late: list[dict[str, float]] = [{"version": each, "time": 9, "eval": 0.5} for each in (0, 2)]
    ended = {"version": 3, "time": 10, "time/total": 2.0}
    rows = joined([*whole[:2], late[0], *whole[2:], late[1], ended])
    assert rows == [whole[0] | {"eval": 0.5}, whole[1], whole[2] | {"eval": 0.5}, whole[3], ended]
    assert joined([*whole[1:], late[0]]) == whole[1:], "its version is not among these"
    assert joined(late) == late, "the run ended in its first row"
