"""Matchmaking: rules sample opponents by their formulas, and schedules resume exactly."""

import itertools
import json
import math
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trueskill
import yaml
from pydantic import ValidationError

from tests.helpers.builders import game
from tests.helpers.mistakes import line_of, refused
from tests.helpers.rows import every_row
from unstable.config import RunConfig, parse
from unstable.league.curriculum import Curriculum
from unstable.league.matchmaking import Matchmaker, VersionStats
from unstable.league.ratings import Registry, RegistryState
from unstable.league.schedule import Schedule
from unstable.league.series import ScheduleState
from unstable.loop.context import make_registry
from unstable.types import MAIN, PlayerId

DRAWS = 10_000
POLICY = VersionStats(PlayerId.policy(6), 29.0, 1.5)
PAST = [
    VersionStats(PlayerId.policy(0), 24.0, 1.0, won=9.5, games=10.0),
    VersionStats(PlayerId.policy(1), 26.0, 1.2, won=5.0, games=8.0),
    VersionStats(PlayerId.policy(2), 27.0, 3.0, won=1.0, games=3.0),
    VersionStats(PlayerId.policy(3), 29.0, 0.9, won=2.5, games=6.0),
    VersionStats(PlayerId.policy(4), 30.0, 2.0, won=0.4, games=1.2),
    VersionStats(PlayerId.policy(5), 29.5, 4.0),
]
SCORES = [10 / 11, 5.5 / 9, 1.5 / 4, 3 / 7, 0.9 / 2.2, 0.5]


def config(past: Any, **opponents: Any) -> RunConfig:
    draw = {"self": 0, "past": 1, "fixed": 0}
    return parse({"opponents": {"draw": draw, "past": past, **opponents}})


def probabilities(past: Any) -> list[float]:
    return Matchmaker(config(past).opponents).probabilities(POLICY, PAST)


def normal(weights: Sequence[float]) -> list[float]:
    return [weight / sum(weights) for weight in weights]


def posterior_draws() -> list[float]:
    """Shares of draws from the Beta posteriors in which each version has the lowest score."""
    drawn = np.random.default_rng(0)
    scores = [drawn.beta(0.5 + e.won, 0.5 + e.games - e.won, 2_000_000) for e in PAST]
    return list(np.bincount(np.argmin(scores, axis=0), minlength=len(PAST)) / 2_000_000)


def match_quality() -> list[float]:
    own = trueskill.Rating(POLICY.mu, POLICY.sigma)
    environment = trueskill.TrueSkill(draw_probability=0.1)
    return [environment.quality([(own,), (trueskill.Rating(e.mu, e.sigma),)]) for e in PAST]


RULES: list[tuple[Any, Callable[[], list[float]]]] = [
    ("uniform", lambda: [1.0] * 6),
    ("latest", lambda: [0, 0, 0, 0, 0, 1]),
    ({"rule": "latest", "args": {"newest": 3}}, lambda: [0, 0, 0, 1, 1, 1]),
    ("pfsp", lambda: [1 - p for p in SCORES]),
    ({"rule": "pfsp", "args": {"exponent": 2}}, lambda: [(1 - p) ** 2 for p in SCORES]),
    ({"rule": "pfsp", "args": {"form": "even"}}, lambda: [p * (1 - p) for p in SCORES]),
    (
        {"rule": "pfsp", "args": {"form": "even", "exponent": 3}},
        lambda: [(p * (1 - p)) ** 3 for p in SCORES],
    ),
    ("quality", match_quality),
    ("thompson", posterior_draws),
    (
        ["latest", {"rule": "pfsp", "weight": 3}],
        lambda: [
            0.25 * last + 0.75 * hard
            for last, hard in zip([0, 0, 0, 0, 0, 1], normal([1 - p for p in SCORES]), strict=True)
        ],
    ),
]


@every_row("past, formula", *RULES)
def test_rule_samples_versions_by_formula(past: Any, formula: Callable[[], list[float]]) -> None:
    expected = normal(formula())
    found = probabilities(past) or [1 / len(PAST)] * len(PAST)
    assert found == pytest.approx(expected, abs=2e-3 if past == "thompson" else 1e-9)
    schedule = Schedule(config(past))
    players, given = [each.player for each in PAST], probabilities(past)
    drawn: Counter[PlayerId] = Counter()
    for _ in range(DRAWS):
        (spec,) = schedule.draw_group(POLICY.player, players, given)
        (met,) = [seat.player for seat in spec.seats if not seat.trained]
        drawn[met] += 1
    likely = [(drawn[p], DRAWS * e) for p, e in zip(players, expected, strict=True) if e]
    assert sum(count for count, _ in likely) == DRAWS
    chi_squared = sum((count - mean) ** 2 / mean for count, mean in likely)
    assert chi_squared < 20.5  # 99.9 % quantile for 5 degrees of freedom
    for count, mean in likely:
        assert abs(count - mean) < 5 * math.sqrt(mean)
    shown = schedule.state().met
    counts = {name: count for name, (count, _) in shown.items()}
    assert counts == {player.name: drawn[player] for player in players}

    for player, chance in zip(players, found, strict=True):
        assert shown[player.name][1] == pytest.approx(DRAWS * chance)


def test_thompson_handles_sharp_posteriors_and_large_pools() -> None:
    """Posteriors narrower than the grid, and a pool of hundreds."""
    made = Matchmaker(config("thompson").opponents)
    sure = [
        VersionStats(PlayerId.policy(n), 25, 1, won=w, games=1e6) for n, w in enumerate((2e5, 5e5))
    ]
    assert made.probabilities(POLICY, sure) == pytest.approx([1.0, 0.0])
    alike = [VersionStats(PlayerId.policy(n), 25, 1, won=30.0, games=50.0) for n in range(300)]
    assert made.probabilities(POLICY, alike) == pytest.approx([1 / 300] * 300)
    lost = [VersionStats(PlayerId.policy(n), 25, 1, won=0.0, games=1e5) for n in range(3)]
    assert made.probabilities(POLICY, lost) == pytest.approx([1 / 3] * 3)


def test_fixed_opponents_are_sampled_by_their_weights() -> None:
    fixed = [{"kind": "random", "weight": 3}, {"kind": "expert"}, {"kind": "rules", "weight": 2}]
    draw = {"self": 0, "past": 0, "fixed": 1}
    schedule = Schedule(parse({"opponents": {"draw": draw, "fixed": fixed}}))
    drawn = Counter(
        seat.player.name
        for _ in range(DRAWS)
        for seat in schedule.draw_group(POLICY.player, [])[0].seats
        if not seat.trained
    )
    expected = {"random": DRAWS / 2, "expert": DRAWS / 6, "rules": DRAWS / 3}
    assert sum((drawn[name] - mean) ** 2 / mean for name, mean in expected.items()) < 13.8


def test_default_schedule_matches_the_recorded_series() -> None:
    fixed = [{"kind": "random"}, {"kind": "expert"}]
    draw = {"self": 0, "past": 2, "fixed": 1}
    schedule = Schedule(parse({"seed": 3, "opponents": {"draw": draw, "fixed": fixed}}))
    players = [PlayerId.policy(version) for version in range(5)]
    groups = [schedule.draw_group(PlayerId.policy(5), players) for _ in range(14)]
    drawn = [s.player.name for (spec,) in groups for s in spec.seats if not s.trained]
    assert " ".join(drawn) == (
        "main@1 random random expert random main@2 random main@3 main@3 expert main@3 expert "
        "random main@2"
    )


def registry(past: Any = "uniform", **opponents: Any) -> Registry:
    made = config(past, **opponents)
    return make_registry(made, matchmaker=Matchmaker(made.opponents))


def enter(made: Registry, *versions: int, policy: str = MAIN) -> None:
    for version in versions:
        made.add(PlayerId.policy(version, policy))
        made.announce(PlayerId.policy(version, policy))


def names(made: Registry) -> list[str]:
    return [player.name for player in made.past(MAIN)]


def test_payoffs_count_wins_against_past_versions_and_decay() -> None:
    made = registry("pfsp", pool_size=3)
    enter(made, 0, 1, 2)
    made.record(
        [
            game(("main@2", "main@0"), (1.0, -1.0)),
            game(("main@0", "main@2"), (0.0, 0.0)),
            game(("main@1", "main@2"), (1.0, -1.0)),
            game(("main@2", "main@0", "main@1"), (0.0, 1.0, -1.0)),
            game(("main@1", "main@0"), (1.0, -1.0)),  # started by the previous version
            game(("main@2", "random"), (1.0, -1.0)),
            game(("main@2", "main@2"), (1.0, -1.0)),
        ]
    )
    assert made.state().payoffs == {"main@0": (2.5, 4.0), "main@1": (1.0, 2.0)}
    assert made.probabilities(MAIN) == [0.5, 0.5]  # until the next version is announced
    enter(made, 3)
    assert made.state().payoffs == {"main@0": (2.25, 3.6), "main@1": (0.9, 1.8)}
    lost = [1 - (0.5 + 2.25) / 4.6, 1 - (0.5 + 0.9) / 2.8, 0.5]
    assert made.probabilities(MAIN) == pytest.approx(normal(lost))
    enter(made, 0, 1, policy="rival")
    assert made.state().payoffs["main@0"] == (2.25, 3.6)
    enter(made, 4)
    assert [*made.state().payoffs] == ["main@1"] and names(made) == ["main@1", "main@2", "main@3"]


def test_pinned_versions_never_leave_the_pool() -> None:
    made = registry(pool_size=2, pinned=[1, 4, "best"])
    enter(made, 0, 1)
    made.record([game(("main@1", "random"), (1.0, -1.0))] * 8)
    enter(made, 2)
    made.record([game(("main@2", "random"), (1.0, -1.0))] * 30)
    enter(made, 3)
    made.record([game(("main@3", "random"), (-1.0, 1.0))] * 30)
    enter(made, *range(4, 9))
    assert names(made) == ["main@1", "main@2", "main@4", "main@6", "main@7"]
    other = registry(pool_size=2, pinned=[1, 4, "best"])
    other.restore(RegistryState.model_validate_json(made.state().model_dump_json()))
    assert names(other) == names(made)
    for each in (made, other):
        each.record([game(("main@8", "random"), (1.0, -1.0))] * 200)
        enter(each, 9)
        assert names(each) == ["main@1", "main@4", "main@7", "main@8"]
        each.record([game(("main@8", "random"), (-1.0, 1.0))] * 200)
        enter(each, 10)
        # Best of the pool: main@2 has left it, and its weights are deleted.
        assert "main@2" not in names(each) and {"main@1", "main@4"} <= {*names(each)}


def test_restored_registry_keeps_its_probabilities() -> None:
    made, other = registry("pfsp"), registry("pfsp")
    enter(made, 0, 1, 2)
    made.record([game(("main@2", "main@0"), (1.0, -1.0))] * 5)
    enter(made, 3)
    chosen = made.probabilities(MAIN)
    made.record([game(("main@3", "main@1"), (-1.0, 1.0))] * 5)  # counts from the next version on
    other.restore(RegistryState.model_validate_json(made.state().model_dump_json(), strict=True))
    assert other.probabilities(MAIN) == made.probabilities(MAIN) == chosen
    for each in (made, other):
        enter(each, 4)
    assert other.state() == made.state()
    assert other.probabilities(MAIN) == made.probabilities(MAIN) != chosen


def test_restored_schedule_redraws_games_with_probabilities() -> None:
    made = config("pfsp", fixed=[{"kind": "random", "weight": 2}, {"kind": "expert"}])
    schedule, drawn = Schedule(made), []
    for version in range(1, 5):
        players = [PlayerId.policy(each) for each in range(version)]
        given = normal([1 / (3 + each) for each in range(version)])
        for _ in range(20):
            drawn += schedule.draw_group(PlayerId.policy(version), players, given)
        given = normal([1.0 + each for each in range(version)])  # same pool, other probabilities
        for _ in range(20):
            drawn += schedule.draw_group(PlayerId.policy(version), players, given)
    wanted = {spec.game_id for spec in drawn}
    assert schedule.drawn_again(wanted) == drawn
    other = Schedule(made)
    state = ScheduleState.model_validate_json(schedule.state().model_dump_json(), strict=True)
    other.restore(state)
    assert other.drawn_again(wanted) == drawn
    for each in (schedule, other):
        drawn = each.draw_group(PlayerId.policy(9), players, given)
    assert other.state() == schedule.state()
    spoilt = json.loads(state.model_dump_json())
    spoilt["stretches"][1]["probabilities"] = [0.5, 0.5, 0.5]
    with pytest.raises(ValidationError, match="probabilities do not match the past versions"):
        ScheduleState.model_validate_json(json.dumps(spoilt))


# Rock, paper, scissors

WINS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])


def play_on(past: Any, shares: tuple[int, int], versions: int = 160) -> np.ndarray:
    """Each version's shares of rock, paper and scissors.

    A version is the logit response to the mixture of players that it was trained against (smooth
    fictitious play; Fudenberg and Levine, 1998, chapter 4). Payoffs come from played games.
    """
    made = registry(past, pool_size=versions)
    chance, own_share = random.Random(1), shares[0] / sum(shares)
    mixtures = [np.array([0.6, 0.3, 0.1])]
    enter(made, 0)
    for version in range(1, versions):
        pool = [player.version or 0 for player in made.past(MAIN)]
        given = made.probabilities(MAIN) or [1.0 / max(1, len(pool))] * len(pool)
        met = own_share * mixtures[-1] if pool else mixtures[-1]
        if pool:
            met = met + (1 - own_share) * sum(
                c * mixtures[each] for c, each in zip(given, pool, strict=True)
            )
            played = []
            for _ in range(16):
                (other,) = chance.choices(pool, given)
                sides = version - 1, other
                own, its = (chance.choices(range(3), [*mixtures[each]])[0] for each in sides)
                outcome = float(WINS[own, its])
                played.append(game((f"main@{version - 1}", f"main@{other}"), (outcome, -outcome)))
            made.record(played)
        logits = np.exp(4 * WINS @ met)
        mixtures.append(logits / logits.sum())
        enter(made, version)
    return np.array(mixtures)


def test_pfsp_mixes_rock_paper_scissors_while_self_play_cycles() -> None:
    mirror = play_on("uniform", (1, 0))[-30:]
    assert mirror.min(axis=1).max() < 0.1  # each version drops one move
    favourites = mirror.argmax(axis=1)
    turns = {(int(a), int(b)) for a, b in itertools.pairwise(favourites)}
    assert turns == {(0, 1), (1, 2), (2, 0)}  # each favorite beats the previous one
    for form in ("hard", "even"):
        league = play_on({"rule": "pfsp", "args": {"form": form}}, (0, 1))[-30:]
        assert league.min() > 0.2


# Invalid rules


@every_row(
    "past, problem",
    ("pfps", "opponents.past.0.rule = 'pfps': unknown rule or module:function; did you mean 'pf"),
    ({"rule": "pfsp", "args": {"k": 1}}, "opponents.past.0.rule = 'pfsp' with args = {'k': 1}"),
    ({"rule": "pfsp", "args": {"form": "odd"}}, "opponents.past.0.rule = 'pfsp' with args = {"),
    ({"rule": "pfsp", "args": {"exponent": "x"}}, "opponents.past.0.rule = 'pfsp' with args"),
    (["uniform", {"rule": "latest", "args": {"newest": 0}}], "opponents.past.1.rule = 'latest"),
    ("no_such_module:rule", "opponents.past.0.rule = 'no_such_module:rule': cannot import"),
    ([], "opponents.past = []"),
    ({"rule": "pfsp", "weight": 0}, "opponents.past.weight = 0"),
    (3, "opponents.past = 3"),
    ({"rul": "pfsp"}, "opponents.past: unknown key 'rul'; did you mean 'rule'?"),
)
def test_invalid_rule_is_reported_in_one_line(past: Any, problem: str) -> None:
    assert line_of(lambda: Matchmaker(config(past).opponents)).startswith(problem)


@every_row("pinned", ["worst"], [-1], "best", [0.5])
def test_invalid_pinned_versions_are_reported_in_one_line(pinned: Any) -> None:
    refused(r"^opponents\.pinned", config, "uniform", pinned=pinned)


def test_documented_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (Path(__file__).parent.parent.parent / "docs/matchmaking.md").read_text()
    first, own, search, several = (
        yaml.safe_load(e) for e in re.findall(r"```yaml\n(.*?)```", text, re.S)
    )
    made = parse(first).opponents
    assert [each.kind for each in parse(search).opponents.fixed] == ["search", "mcts"]
    assert made.pinned == [0, "best"] and [each.weight for each in made.fixed] == [1, 2]
    hard = normal([(1 - p) ** 2 for p in SCORES])
    expected = [0.8 * weight + 0.2 / 6 for weight in hard]
    assert Matchmaker(made).probabilities(POLICY, PAST) == pytest.approx(expected)
    (code,) = re.findall(r"```python\n(.*?)```", text, re.S)
    (tmp_path / "my_rules.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    behind = Matchmaker(parse(own).opponents).probabilities(POLICY, PAST)
    assert behind == pytest.approx([0, 0, 1 / 3, 1 / 3, 1 / 3, 0])
    sys.modules.pop("my_rules")
    assert Curriculum(parse(several)).probabilities() == [1 / 3, 2 / 3]


def test_custom_rule_sets_probabilities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rules.py").write_text(
        "def oldest(policy, past, least=0.0):\n"
        "    return [1.0, *(least for _ in past[1:])]\n"
        "def none(policy, past):\n"
        "    return [0.0 for _ in past]\n"
        "def short(policy, past):\n"
        "    return [1.0]\n"
        "def wrong(policy, past):\n"
        "    return policy.nothing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert probabilities("my_rules:oldest") == [1.0, 0, 0, 0, 0, 0]
    found = probabilities({"rule": "my_rules:oldest", "args": {"least": 0.2}})
    assert found == pytest.approx([0.5, 0.1, 0.1, 0.1, 0.1, 0.1])
    for name, problem in (
        ("none", r"returned \[0.0, 0.0, 0.0\] for 3 past versions; return a weight >= 0 for"),
        ("short", r"returned \[1.0\] for 3 past versions"),
        ("wrong", "AttributeError 'VersionStats' object has no attribute 'nothing'"),
        ("nobody", "my_rules has no nobody"),
    ):
        refused(rf"^opponents\.past\.0\.rule = .*{problem}", probabilities, f"my_rules:{name}")
    sys.modules.pop("my_rules")
