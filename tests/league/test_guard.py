"""The guard ignores healthy runs and noise, and detects failures early."""

import dataclasses
import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.helpers.builders import game, turn
from tests.helpers.mistakes import refused
from tests.helpers.rows import every_row
from tests.helpers.tracking import make_config, make_score, make_tracker, printed
from unstable.config import Rule, RunConfig, parse
from unstable.league.guard import Guard, GuardState, mean_low
from unstable.league.rules import (
    THRESHOLDS,
    FigurePoint,
    MetricHistory,
    VersionScores,
    above,
    below_start,
    fallen,
    figures,
    grown,
    lost,
    risen,
)
from unstable.records.reading import read_rows
from unstable.tracking.dashboard import screenshot
from unstable.tracking.play import PlayMetrics
from unstable.types import Alarm, EvalScore, PlayerId, SeatSpec
from unstable.types.intervals import wilson_interval
from unstable.types.metrics import metric
from unstable.types.play import PlayTally

ROOT = Path(__file__).parents[2]
STEERING = ["warn", "opponents", "rollback", "learning_rate"]
Row = dict[str, float | None]


NAMES = {
    **{"entropy": "learn/entropy", "actions": "collect/action_entropy/TicTacToe-v0"},
    **{"kl_sampling": "learn/mismatch_kl", "kl_reference": "learn/kl_reference"},
    **{"length": "learn/completion_length_mean", "samples": "learn/samples"},
    **{"truncation": "learn/truncated_share", "groups": "learn/groups"},
    **{"tied": "learn/tied_groups", "results": "collect/versus/self/games"},
    **{"draws": "collect/versus/self/draw", "forfeits": "collect/versus/self/forfeit"},
}
SOUND: Row = {
    **{"entropy": 0.5, "actions": 1.8, "kl_sampling": 0.002, "kl_reference": 0.05, "length": 5.0},
    **{"samples": 128, "truncation": 0.01, "groups": 16, "tied": 3},
    **{"results": 18, "draws": 0.3, "forfeits": 0.05},
}
OTHERS: Row = {"learn/entropy/TicTacToe-v0/0": 0.0, "learn/lone_groups": 0}  # per role: ignored
OTHERS |= {"collect/versus/others/games": 0, "collect/versus/others/forfeit": None}


def row(**changes: float | None) -> Row:
    """Return an update of a healthy run, with changes by short names."""
    return {NAMES[name]: value for name, value in (SOUND | changes).items()} | OTHERS


def guard(**changes: Any) -> Guard:
    """Return a guard with these config fields; a rule's name sets its threshold."""
    thresholds = {name: changes.pop(name) for name in [*changes] if name in THRESHOLDS}
    return Guard(parse({"guard": {"thresholds": thresholds, **changes}}))


def score(version: int, share: float, games: int = 64, opponent: str = "random") -> EvalScore:
    low, high = wilson_interval(share, games)
    made = make_score(version, opponent, share)
    return dataclasses.replace(made, games=games, distinct=games, low=low, high=high)


def alarms(watch: Guard, rows: Iterable[Row], first: int = 1) -> list[Alarm]:
    return [alarm for k, each in enumerate(rows, first) for alarm in watch.check(k, each)]


def course(values: Iterable[float], size: float = 1.0) -> MetricHistory:
    made = MetricHistory()
    for version, value in enumerate(values, 1):
        made.add(FigurePoint(version, value, size))
    return made


# Rules


def test_entropy_and_length_rules_on_hand_made_histories() -> None:
    start = [0.4, 0.5, 0.3, 0.4, 9.0]  # median 0.4
    assert below_start(course([*start, 0.09, 0.09, 0.11]), 0.25) is None
    assert below_start(course([*start, 0.2, 0.09, 0.08, 0.07]), 0.25) == (0.09, 0.1, 7)
    flat = [0.4] * 10
    assert fallen(course([0.4] * 9 + [0.1] * 3), 0.5) is None  # too short
    assert fallen(course([*flat, 0.1, 0.4, 0.4]), 0.5) is None  # a single low value
    assert fallen(course([*flat, 0.4, 0.1, 0.15]), 0.5) == (0.15, 0.2, 12)
    slowly = [0.4 * 0.94**k for k in range(60)]  # halves in eleven updates
    assert all(fallen(course(slowly[: k + 1]), 0.5) is None for k in range(60))
    assert grown(course([16.0, 8, 4, 4, 4, 4, 4, 5, 7, 7]), 1.5) == (7, 6, 9)
    assert grown(course([4.0, 4, 4, 4, 4, 5, 5.9, 9]), 1.5) is None


def test_information_is_lost_against_its_maximum() -> None:
    assert lost(course([0.001, 0.01, 0.0, 0.01, 0.0, 0.0, 0.0, 0.0]), 0.5) is None  # none to lose
    held = [0.1, 0.2, 0.2, 0.2, 0.2, 0.2]
    assert lost(course([*held, 0.11, 0.11, 0.11]), 0.5) is None
    assert lost(course([*held, 0.2, 0.09, 0.08]), 0.5) == (0.09, pytest.approx(0.1), 8)


def test_risen_exceeds_threshold_and_sampling_noise() -> None:
    # The least is 0 of 500, whose 95 % interval ends at 0.0076: 5 sd of 100 are 0.0435.
    rising = course([0.0] * 5 + [0.02, 0.06, 0.1], size=100)
    assert risen(rising, 0.05) == (pytest.approx(0.06), 0.05, 7)
    assert risen(rising, 0.07) is None
    spread = 5 * math.sqrt(0.00763 * (1 - 0.00763) / 100)
    found = risen(rising, 0.01)
    assert found is not None and found.threshold == pytest.approx(spread, abs=1e-3)
    # Half of 20, then 17 of 20 may be chance; of 2,000 it is not.
    assert risen(course([0.5] * 5 + [0.85] * 3, size=20), 0.05) is None
    assert risen(course([0.5] * 5 + [0.85] * 3, size=2000), 0.05) is not None
    # Means are weighted by counts, not by updates.
    uneven = course([0.0] * 5, size=100)
    for version, point in enumerate([(0.0, 1000), (1.0, 10), (0.0, 1000)], 6):
        uneven.add(FigurePoint(version, *point))
    assert risen(uneven, 0.05) is None


def test_above_requires_three_consecutive_values() -> None:
    assert above(course([0.2, 0.2]), 0.1) is None
    assert above(course([0.2, 0.1, 0.2, 0.2]), 0.1) is None
    assert above(course([0.0, 0.3, 0.2, 0.4]), 0.1) == (0.2, 0.1, 2)


def test_scores_fall_below_the_best_mean_of_three_evaluations() -> None:
    scores = VersionScores()
    for version, share in enumerate([0.5, 0.9, 0.8, 0.7, 0.7, 0.4, 0.3, 0.2]):
        scores.add(FigurePoint(version, share, 100))
    assert scores.best == (3, pytest.approx(0.8), 300)
    found = scores.worse(3.0)
    assert found is not None
    # Wilson with z = 3, 240 and 90 of 300.
    low, high = 0.7231, 0.3855
    assert found.figure == pytest.approx(0.3)
    assert found.threshold == pytest.approx(low - (high - 0.3), abs=1e-3)
    assert found.since == 5
    few = VersionScores(
        [FigurePoint(k, share, 4) for k, share in enumerate([0.4, 0.3, 0.2])],
        FigurePoint(3, 0.8, 12),
    )
    assert few.worse(3.0) is None


@every_row(
    "rule, before, after",
    ("entropy", {"entropy": 0.8}, {"entropy": 0.06}),
    ("entropy", {"actions": 1.8}, {"actions": 0.15}),
    ("entropy_fall", {"entropy": 0.8}, {"entropy": 0.35}),
    ("kl_sampling", {"kl_sampling": 0.01}, {"kl_sampling": 0.03}),  # x 5 tokens
    ("kl_reference", {"kl_reference": 0.3}, {"kl_reference": 0.7}),
    ("length", {"length": 5}, {"length": 8}),
    ("truncation", {"truncation": 0.01}, {"truncation": 0.12}),
    ("forfeits", {"forfeits": 0.1, "results": 100}, {"forfeits": 0.4, "results": 100}),
    ("tied", {"tied": 12}, {"tied": 16}),
)
def test_each_rule_raises_only_its_own_alarm(rule, before, after):
    rows = [row(**before)] * 12 + [row(**after)] * 3
    sudden = {"entropy_fall": None} if rule == "entropy" else {}
    found = alarms(guard(**sudden), rows)
    assert [alarm.rule for alarm in found] == [rule]
    (alarm,) = found
    assert 13 <= alarm.since <= alarm.version <= 15
    assert alarms(guard(**sudden, **{rule: None}), rows) == []


def test_draw_alarm_requires_worse_scores() -> None:
    rows = [row(draws=0.2, results=200)] * 8 + [row(draws=0.9, results=200)] * 3
    steady, worse = guard(score=None), guard(score=None)
    for version, share in enumerate([0.7, 0.7, 0.7, 0.4, 0.4, 0.4]):
        steady.score([score(version, 0.7)])
        worse.score([score(version, share)])
    assert alarms(steady, rows) == []
    assert [alarm.rule for alarm in alarms(worse, rows)] == ["draws"]
    assert alarms(guard(), rows) == []  # no scores yet


def test_kl_of_long_answers_counts_a_limited_number_of_tokens() -> None:
    limit = 0.1 / 8
    assert alarms(guard(), [row(length=900.0, kl_sampling=0.9 * limit)] * 9) == []
    assert alarms(guard(), [row(length=900.0, kl_sampling=1.1 * limit)] * 9) != []


# Healthy runs


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {
            **{"entropy": st.floats(1e-6, 10), "actions": st.floats(0, 10)},
            **{"kl_sampling": st.floats(0, 0.1 / 8), "kl_reference": st.floats(0, 3 / 8)},
            **{"length": st.floats(1, 1e4), "samples": st.integers(1, 4096)},
            **{"groups": st.integers(1, 100), "tied": st.just(0), "results": st.integers(1, 500)},
            **dict.fromkeys(("truncation", "draws", "forfeits"), st.floats(0, 1)),
        }
    ),
    st.floats(0, 1),
)
def test_constant_run_raises_no_alarm(values: dict[str, Any], share: float) -> None:
    watch = guard()
    for version in range(1, 30):
        assert watch.check(version, row(**values)) == []
        assert watch.score([score(version, share)]) == []


def test_missing_metrics_raise_no_alarm() -> None:
    assert alarms(guard(), [{}, dict.fromkeys(row())] * 10) == []
    assert figures(dict.fromkeys(row()), 1) == {}


def noisy(chance: np.random.Generator, **true: float) -> Row:
    """An update whose means vary by 10 % and whose shares are binomial draws."""
    mean = {"entropy": 0.5, "actions": 1.8, "kl_sampling": 0.002, "length": 5.0} | {
        name: value for name, value in true.items() if name in ("entropy", "actions", "length")
    }
    varied = {name: value * math.exp(0.1 * chance.normal()) for name, value in mean.items()}
    sizes = {"truncation": 128, "draws": 9, "forfeits": 18}
    shares = {"truncation": 0.02, "draws": 0.4, "forfeits": 0.1} | {
        name: value for name, value in true.items() if name in sizes
    }
    drawn = {name: chance.binomial(sizes[name], shares[name]) / sizes[name] for name in sizes}
    return row(**varied, **drawn, tied=chance.binomial(16, true.get("tied", 0.3)))


def learned(update: int) -> dict[str, float]:
    """True means and shares of a run that learns: entropy falls, draws and ties rise."""
    done = 1 - math.exp(-update / 60)
    return {
        **{"entropy": 0.55 * (1 - 0.6 * done), "actions": 2.1 - 0.3 * done},
        **{"draws": 0.12 + 0.5 * done, "forfeits": 0.08 - 0.07 * done},
        **{"tied": 0.2 + 0.5 * done, "score": 0.48 + 0.42 * done},
    }


@pytest.mark.parametrize("course_of", [lambda update: {}, learned], ids=["noise", "learning"])
def test_noise_raises_no_alarm(course_of: Callable[[int], dict[str, float]]) -> None:
    for seed in range(20):
        chance, watch = np.random.default_rng(seed), guard()
        for version in range(1, 101):
            true = course_of(version)
            assert watch.check(version, noisy(chance, **true)) == [], (seed, version)
            if version % 4 == 0:
                share = chance.binomial(16, true.get("score", 0.6)) / 16
                assert watch.score([score(version, share, games=16)]) == [], (seed, version)


# Failures


def recorded(update: int) -> dict[str, float]:
    """REINFORCE's course: entropy .40 to .13 in 60 updates, then all answers to the limit in 20."""
    cut = min(1.0, max(0.0, (update - 60) / 20))
    entropy = 0.4 * (0.13 / 0.4) ** (min(update, 60) / 60)
    return {"entropy": entropy, "truncation": cut, "length": (1 - cut) * 4 + cut * 16}


@pytest.mark.parametrize("seed", range(10))
def test_recorded_failure_is_detected_before_20_percent_truncation(seed: int) -> None:
    chance = np.random.default_rng(seed)
    found = alarms(guard(), (noisy(chance, **recorded(k)) for k in range(1, 81)))
    assert found[0].version > 60, "healthy until then by these metrics"
    assert recorded(found[0].version)["truncation"] < 0.2
    assert {"truncation", "length"} <= {alarm.rule for alarm in found}


def test_score_collapse_is_detected() -> None:
    watch = guard()
    shares = [0.5, 0.6, 0.7, 0.7, 0.7, 0.7, 0.3, 0.3, 0.3]
    found = [(k, watch.score([score(k, share)])) for k, share in enumerate(shares)]
    (version, (alarm,)), *_ = [(k, each) for k, each in found if each]
    assert (version, alarm.rule) == (7, "score")
    assert alarm.name == "eval/TicTacToe-v0/random/sampled/score"
    assert alarm.figure == pytest.approx((0.7 + 0.3 + 0.3) / 3) and alarm.figure < alarm.threshold


# Actions


def failing() -> list[Row]:
    return [row()] * 6 + [row(truncation=0.5)] * 30


def test_warning_repeats_and_keeps_history() -> None:
    watch, versions = guard(patience=7), []
    for version, each in enumerate(failing(), 1):
        versions += [alarm.version for alarm in watch.check(version, each)]
        assert watch.take_actions(version) == []
    assert versions == [7, 14, 21, 28, 35]


def test_action_resets_history() -> None:
    watch, acted = guard(action=STEERING, patience=7), []
    watch.score([score(0, 0.5)])
    for version, each in enumerate(failing(), 1):
        watch.check(version, each)
        if actions := watch.take_actions(version):
            acted.append(version)
            assert actions == ["opponents", "rollback", "learning_rate"]
    assert acted == [7], "the new reference level is half truncated"
    assert [alarm.rule for alarm in alarms(watch, [row(truncation=0.9)] * 3, 40)] == ["truncation"]


def test_alarms_pause_after_an_action() -> None:
    watch = guard(action="learning_rate", patience=7)
    rows = [row()] * 6 + [row(truncation=0.5)] + [row(kl_sampling=1.0)] * 20
    found = alarms_and_actions(watch, rows)
    assert [alarm.version for alarm in found] == [7, 14, 21]


def alarms_and_actions(watch: Guard, rows: Iterable[Row]) -> list[Alarm]:
    found = []
    for version, each in enumerate(rows, 1):
        found += watch.check(version, each)
        watch.take_actions(version)
    return found


def test_rollback_needs_an_evaluation_and_runs_at_the_next_update() -> None:
    watch = guard(action=["rollback"])
    for version, share in enumerate([0.6, 0.8, 0.6, 0.1, 0.1, 0.1]):
        watch.score([score(version, share)])
    assert watch.check(6, row()) == []
    assert watch.take_actions(6) == ["rollback"]
    assert watch.best == 1
    assert watch.take_actions(7) == []
    watch = guard(action=["rollback", "learning_rate"])
    alarms(watch, failing()[:7])
    assert watch.take_actions(7) == ["learning_rate"]
    assert watch.needed == frozenset()


def test_best_version_is_compared_in_common_opponents() -> None:
    watch = guard()
    found = []
    for version, shares in enumerate(
        [{"a": 0.9, "b": 0.4}, {"a": 0.8}, {"a": 0.95, "b": 0.3, "c": 0.9}, {"d": 0.1}]
    ):
        watch.score([score(version, share, opponent=o) for o, share in shares.items()])
        found.append(watch.best)
    assert found == [0, 0, 0, 3]
    assert watch.needed == {3}, "a resumed run may roll back"
    older = watch.state().model_dump() | {"best": (7, 0.6)}
    watch.restore(GuardState.model_validate(older))
    for version, share in ((8, 0.1), (9, 0.99)):
        watch.score([score(version, share)])
        found.append(watch.best)
    assert found[4:] == [7, 9]


def test_best_version_has_the_highest_mean_lower_bound() -> None:
    watch = guard(action=["rollback"])
    even = [score(2, 0.7, opponent="random"), score(2, 0.7, opponent="base")]
    for version, pair in enumerate([(0.5, 0.6), (1.0, 0.3), (0.7, 0.7), (0.7, 0.69)]):
        watch.score([score(version, p, opponent=o) for p, o in zip(pair, "ab", strict=True)])
    assert (watch.best, watch.needed) == (2, {2})
    half = math.hypot(0.7 - even[0].low, 0.7 - even[1].low) / 2
    assert mean_low([(0.7, each.low) for each in even]) == pytest.approx(0.7 - half)
    few = score(4, 0.75, games=8)
    assert mean_low([(0.75, few.low)]) == pytest.approx(few.low)
    watch.score([few, score(4, 0.75, games=8, opponent="b")])
    assert watch.best == 2, "higher, but of few games"
    watch.score([make_score(5, score=0.95, temperature=0.0)])
    assert watch.best == 2, "another temperature is another player"
    assert guard().needed == frozenset()


def test_guard_without_actions_raises_no_alarm() -> None:
    watch = guard(action=[])
    assert alarms(watch, failing()) == []
    assert watch.score([score(0, 0.5)]) == [] and watch.score([score(1, 0.1)]) == []
    assert watch.best == 0, "checkpoints/best needs it without actions"


@every_row("cut", 3, 7, 9, 20)
def test_restored_guard_continues_identically(cut: int) -> None:
    """A guard restored from JSON continues like the original."""
    shares = [0.6, 0.7, 0.7, 0.7, 0.7, 0.7] + [0.3] * 30

    def watch_on(watch: Guard, versions: range) -> list[object]:
        seen: list[object] = []
        for version in versions:
            seen += watch.check(version, failing()[version - 1])
            seen += watch.score([score(version, shares[version - 1])])
            seen.append(watch.take_actions(version))
        return seen

    settings = {"action": ["rollback"], "patience": 4}
    one = guard(**settings)
    watch_on(one, range(1, cut))
    two = guard(**settings)
    two.restore(GuardState.model_validate_json(one.state().model_dump_json()))
    assert two.state() == one.state() and two.best == one.best
    assert watch_on(one, range(cut, 37)) == watch_on(two, range(cut, 37))
    assert one.state() == two.state()


# Metrics


def test_guard_counts_games_like_the_row_outside_openings() -> None:
    opener = SeatSpec(player=PlayerId.policy(0), temperature=1.0)
    games = [
        game(("main@3", "main@3"), (0.0, 0.0)),
        game(("main@3", "main@3"), (-1.0, 0.0), forfeit=0),
        game(("main@3", "random"), (0.0, -1.0), forfeit=1),
        game(("main@3", "random"), (1.0, -1.0), turns=6),
        game(("main@3", "main@3"), (0.0, 0.0), turns=2),
    ]
    for played, opening in ((games[3], 3), (games[4], 2)):
        played.spec = replace(played.spec, opening=opening, opener=opener)
    games[3].turns[0] = turn(0, 0, "main@0", action="[9]")
    tally, metrics, watch, resumed = PlayTally.empty(), PlayMetrics(make_config()), guard(), guard()
    for played in games:
        tally.add_game(played, [])
    metrics.tally.add(tally)
    watch.count(tally)
    resumed.restore(GuardState.model_validate_json(watch.state().model_dump_json(), strict=True))
    assert watch.check(5, {}) == resumed.check(5, {}) == []
    assert watch.state() == resumed.state()
    found = {name: history.recent[-1] for name, history in watch.state().histories.items()}
    assert found == figures(metrics.take(1.0), 5)
    assert found["collect/versus/forfeit"] == (5, 1 / 6, 6)
    assert found["collect/versus/self/draw"] == (5, 0.5, 2)
    assert found["collect/action_entropy/TicTacToe-v0"] == (5, 0, 1)  # all [4]
    watch.check(6, {})
    assert {history.recent[-1].version for history in watch.state().histories.values()} == {5}


@every_row(
    "data, message",
    ({"guard": {"action": "rollback"}, "eval": {"every": 0}}, "guard.action = rollback"),
    ({"guard": {"action": "sleep"}}, "guard.action = 'sleep'"),
    ({"guard": {"thresholds": {"tied": 0}}}, "guard.thresholds.tied = 0"),
    ({"guard": {"thresholds": {"ties": 1}}}, "guard.thresholds.ties = 'ties': input should be"),
    ({"guard": {"factor": 1}}, "guard.factor = 1"),
    (
        {"guard": {"action": ["opponents"]}, "opponents": {"fixed": [], "draw": {"fixed": 0}}},
        "guard.opponents.fixed = 0.25",
    ),
    (
        {"guard": {"action": "opponents", "opponents": {"self": 0, "past": 0, "fixed": 0}}},
        "guard.opponents: all shares are 0",
    ),
)
def test_invalid_guard_config_is_reported_in_one_line(data: dict[str, Any], message: str) -> None:
    refused(re.escape(message), parse, data)


def test_warn_action_needs_no_evaluation_or_opponents() -> None:
    config = parse({"opponents": {"fixed": [], "draw": {"fixed": 0}}, "eval": {"every": 0}})
    assert config.guard.action == ["warn"]
    assert isinstance(config, RunConfig)


# Display


def test_alarms_are_counted_printed_and_documented(tmp_path, caplog):
    tracker = make_tracker(tmp_path, make_config())
    (alarm,) = alarms(guard(), failing()[:7])
    shares = {"self": 0.25, "past": 0.5, "fixed": 0.25}
    tracker.log_alarms([])
    tracker.log_actions([], None, shares)
    tracker.end_update(6)
    tracker.log_alarms([alarm])
    tracker.log_actions(["opponents", "rollback"], 4, shares)
    tracker.log_alarms([])  # the following evaluation's
    line = "guard at version 7 · truncation: learn/truncated_share 0.173 is above "
    assert line in screenshot(tracker.view, width=160).replace("&#160;", " ")
    tracker.end_update(7)
    before, after = read_rows(tmp_path / "metrics.jsonl")
    assert before["guard/alarms"] == 0 and after["guard/alarms"] == 1
    assert after["guard/alarm/truncation"] == pytest.approx((0.01 + 0.01 + 0.5) / 3)
    assert after["guard/rolled_back_to"] == 4
    assert after["guard/draw/past"] == 0.5
    assert sum("guard" in record.message for record in caplog.records) == 2
    tracker.finish("all updates made")
    shown = printed(tracker)
    assert line in shown
    assert "rolled back to the weights of version 4" in shown
    assert re.search(r"^alarm: truncation +7 +0\.173$", shown, re.MULTILINE)
    assert re.search(r"^action: rollback +7 *$", shown, re.MULTILINE)

    names = [name for name in after if name.startswith("guard/")]
    assert len(names) > 5 and None not in map(metric, names)


def test_guard_page_lists_every_default_threshold() -> None:
    text = (ROOT / "docs" / "guard.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \| ([0-9., ]+) \|", text, re.MULTILINE)
    found = {
        name: float(value)
        for names, values in rows
        for name, value in zip(re.findall("`([a-z_]+)`", names), values.split(","), strict=True)
    }
    assert found == THRESHOLDS
    assert set(get_args(Rule)) == THRESHOLDS.keys()


def test_documented_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs" / "guard.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    run = tmp_path / "outputs" / "my-run"
    run.mkdir(parents=True)
    lines = [json.dumps({"version": k, **each}) for k, each in enumerate(failing()[:8])]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    shown: list[object] = []
    exec(code, {"print": shown.append})
    assert [alarm.rule for alarm in shown] == ["truncation"]  # type: ignore[attr-defined]
