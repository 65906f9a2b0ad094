"""League schedules: when each member trains, which opponents it meets, and how often."""

import math
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.rows import every_row
from unstable.config import RunConfig
from unstable.league.schedule import Schedule
from unstable.studies.league.config import LeagueConfig, MeetConfig, MemberConfig
from unstable.studies.league.population import (
    LEAST_WEIGHT,
    MemberTurn,
    begins_anew,
    met,
    needed,
    newest,
    turns,
    weights,
)
from unstable.types import PlayerId
from unstable.types.tallies import Tally

ROLES = {"m": "main", "e": "exploiter", "l": "league_exploiter"}


def league(roles: str = "mel", **fields: Any) -> LeagueConfig:
    named = {name: {"role": ROLES[name]} for name in roles}
    whole = {"members": named, "generations": 3, "updates": 1, **fields}
    return LeagueConfig.model_validate(whole)


def names(found: list[MemberTurn]) -> str:
    return " ".join(each.name for each in found)


def met_by(own: LeagueConfig, member: str, generation: int) -> str:
    return names(met(own, MemberTurn(member, generation), turns(own)))


def test_opponents_with_alternating_and_joint_turns() -> None:
    own = league()
    assert names(turns(own)) == "m-1 e-1 l-1 m-2 e-2 l-2 m-3 e-3 l-3"
    assert met_by(own, "m", 1) == "" and met_by(own, "e", 1) == "m-1"
    assert met_by(own, "l", 1) == "m-1 e-1" and met_by(own, "m", 2) == "m-1 e-1 l-1"
    assert met_by(own, "e", 3) == "m-3" and met_by(own, "l", 2) == "m-1 e-1 l-1 m-2 e-2"
    assert names(needed(own, MemberTurn("e", 2), turns(own))) == "m-1 e-1 l-1 m-2"
    own = league(turns="together")
    assert names(turns(own)) == "m-1 m-2 e-2 l-2 m-3 e-3 l-3"  # nobody to exploit in generation 1
    assert met_by(own, "m", 2) == met_by(own, "l", 2) == met_by(own, "e", 2) == "m-1"
    assert met_by(own, "e", 3) == "m-2" and met_by(own, "m", 3) == "m-1 m-2 e-2 l-2"
    assert names(needed(own, MemberTurn("l", 3), turns(own))) == "m-1 m-2 e-2 l-2"


def test_pool_can_be_limited_to_newest_and_named_members() -> None:
    y = {"role": "exploiter", "against": ["b", "x"]}
    own = league("", members={"a": {}, "b": {}, "x": {"role": "exploiter"}, "y": y})
    assert met_by(own, "x", 2) == "a-2 b-2" and met_by(own, "y", 2) == "b-2 x-2"
    own = league("ml", meet={"newest": 1})
    assert met_by(own, "m", 3) == "m-2 l-2" and met_by(own, "l", 3) == "l-2 m-3"
    assert names(newest(met(league(), MemberTurn("m", 3), turns(league())))) == "m-2 e-2 l-2"


@given(
    members=st.sampled_from(["m", "ml", "em", "elm", "lme"]),
    order=st.sampled_from(["alternate", "together"]),
)
def test_turns_need_only_earlier_turns_and_meet_finished_ones(members, order):
    own = league(members, turns=order)
    every = turns(own)
    for place, turn in enumerate(every):
        assert set(needed(own, turn, every)) <= set(every[:place])
        assert set(met(own, turn, every)) <= set(needed(own, turn, every))


# Restarts


@every_row(
    "role, restart, last, restarts",
    ("main", None, Tally(9, 0, 1), False),
    ("main", None, None, True),  # not played yet
    ("exploiter", None, Tally(0, 0, 9), True),
    ("exploiter", "never", Tally(9, 0, 0), False),
    ("exploiter", "won", Tally(6, 2, 2), True),  # 0.7
    ("exploiter", "won", Tally(6, 1, 3), False),
    ("league_exploiter", None, Tally(8, 0, 2), True),
    ("league_exploiter", None, Tally(2, 0, 8), False),
    ("league_exploiter", None, Tally(), False),
)
def test_restart_rules(role, restart, last, restarts):
    member = MemberConfig.model_validate({"role": role, "restart": restart})
    assert begins_anew(member, last) is restarts


# Weights


def test_weights_match_the_formula() -> None:
    meet = MeetConfig(prior=2.0)
    results = [{"a": Tally(3, 0, 1), "b": Tally(0, 2, 2)}, {"b": Tally(4, 0, 0)}]
    p = {"a": 4 / 6, "b": (1 + 1 + 2) / (2 + 4 + 2), "c": 0.5}  # earlier games count half
    hard = {name: (1 - own) ** 2 for name, own in p.items()}
    found = weights(meet, "abc", results)
    for name in "abc":
        assert math.isclose(found[name], hard[name] / sum(hard.values()) * 3, rel_tol=1e-3)
    even = {name: (own * (1 - own)) ** 0.5 for name, own in p.items()}
    found = weights(meet.updated({"form": "even", "exponent": 0.5}), "abc", results)
    for name in "abc":
        assert math.isclose(found[name], even[name] / sum(even.values()) * 3, rel_tol=1e-3)
    assert weights(meet.updated({"rule": "uniform"}), "abc", results) == dict.fromkeys("abc", 1.0)
    assert weights(meet, "abc", []) == dict.fromkeys("abc", 1.0) and weights(meet, "", []) == {}


TALLIES = st.builds(Tally, *[st.integers(0, 10**6)] * 3)


@given(
    results=st.lists(st.dictionaries(st.sampled_from("abcd"), TALLIES), max_size=4),
    exponent=st.floats(0.1, 2000),
    form=st.sampled_from(["hard", "even"]),
)
def test_every_version_has_a_positive_weight(results, exponent, form):
    found = weights(MeetConfig(exponent=exponent, form=form), "abc", results)
    assert min(found.values()) >= LEAST_WEIGHT and sum(found.values()) < 3.01


def test_stronger_opponents_get_larger_weights() -> None:
    results = [{"weak": Tally(30, 0, 2), "strong": Tally(2, 0, 30), "even": Tally(10, 0, 10)}]
    found = weights(MeetConfig(), ["weak", "even", "strong"], results)
    assert found["weak"] < found["even"] < found["strong"]


def test_games_are_sampled_by_the_weights() -> None:
    """Chi-squared over 10,000 draws; 16.3 is the 99.9 % quantile at three degrees of freedom."""
    often = weights(MeetConfig(), "abcd", [{"a": Tally(9, 0, 1), "b": Tally(1, 0, 9)}])
    fixed = [
        {"kind": "checkpoint", "name": name, "path": name, "weight": weight}
        for name, weight in often.items()
    ]
    draw = {"self": 0, "past": 0, "fixed": 1}
    config = RunConfig.model_validate({"opponents": {"draw": draw, "fixed": fixed}})
    schedule, policy = Schedule(config), PlayerId.policy(0)
    seen = Counter(
        seat.player.name
        for _ in range(10_000)
        for seat in schedule.draw_group(policy, [])[0].seats
        if seat.player != policy
    )
    expected = {name: 10_000 * weight / sum(often.values()) for name, weight in often.items()}
    assert seen.total() == 10_000 and min(expected.values()) > 100
    assert sum((seen[name] - expected[name]) ** 2 / expected[name] for name in often) < 16.3
