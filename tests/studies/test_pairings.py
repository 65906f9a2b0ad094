"""Tournament designs: balanced, paired, a function of the results; payoffs by pair."""

import random
from collections import Counter

import numpy as np
import pytest
from msgspec.structs import replace

from tests.helpers.builders import game
from tests.helpers.rows import every_row
from unstable.config import RunConfig, parse
from unstable.league.fit import ranking
from unstable.league.past import tallies
from unstable.studies.tournament.pairings import (
    FIRST_DEALS,
    ROUND,
    Design,
    least_budget,
    next_round,
    number_of_games,
)
from unstable.studies.tournament.results import pair_payoffs, payoff_matrix, won_together
from unstable.types import GameResult, GameSpec
from unstable.types.tallies import Tally, least_against_past

TWO = {"env": "TicTacToe-v0"}
THREE = {"env": "LiarsDice-v0", "seats": 3}
TEAMS = {"env": "Teams-v0", "seats": 4, "teams": [[0, 1], [2, 3]]}
STRENGTH = {"strong": 2.0, "even": 1.0, "level": 1.0, "weak": 0.0}


def config(*games: dict, seed: int = 7) -> RunConfig:
    return parse({"games": list(games), "seed": seed})


def design(*players: str, **changes: object) -> Design:
    return Design(**{"players": [(name, 1.0) for name in players], "deals": 3} | changes)


def played(spec: GameSpec) -> GameResult:
    """Draw a result by the players' strengths, with noise that is seeded by the game's id."""
    chance = random.Random(spec.game_id)
    worth = {at: STRENGTH[spec.seats[at[0]].player.name] + chance.gauss(0, 1) for at in spec.sides}
    best = max(worth, key=lambda side: worth[side])
    outcomes = [1.0 if seat in best else -1.0 for seat in range(len(spec.seats))]
    payoffs = [2 * outcome for outcome in outcomes]
    return replace(game(outcomes=outcomes, turns=0), spec=spec, payoffs=payoffs, stakes=4.0)


def whole(run: RunConfig, plan: Design) -> list[GameResult]:
    results: list[GameResult] = []
    while specs := next_round(run, plan, results):
        assert len(specs) <= ROUND
        results += map(played, specs)
    return results


def names(spec: GameSpec) -> tuple[str, ...]:
    return tuple(seat.player.name for seat in spec.seats)


def test_every_pair_plays_every_deal_from_every_side() -> None:
    results = whole(config(TWO, TEAMS), design("strong", "even", "weak"))
    specs = [each.spec for each in results]
    assert [spec.game_id for spec in specs] == list(range(3 * 2 * 3 * 2))
    assert set(Counter((spec.env, names(spec)) for spec in specs).values()) == {3}
    deals = {(spec.env, spec.seed) for spec in specs}
    assert len(deals) == 2 * 3, "all pairs get the same deals"
    assert ("strong", "strong", "even", "even") in {names(spec) for spec in specs}


def test_each_player_plays_each_of_three_sides_alone() -> None:
    specs = [each.spec for each in whole(config(THREE), design("strong", "weak", deals=1))]
    alone = Counter(
        (name, place)
        for spec in specs
        for place, name in enumerate(names(spec))
        if names(spec).count(name) == 1
    )
    assert len(specs) == 6 and set(alone.values()) == {1} and len(alone) == 6


def test_players_meet_themselves_if_requested() -> None:
    specs = [each.spec for each in whole(config(TWO), design("even", "weak", with_itself=True))]
    met = Counter(map(names, specs))
    assert met == {
        **{("even", "weak"): 3, ("weak", "even"): 3},
        **{("even", "even"): 3, ("weak", "weak"): 3},
    }


def test_interrupted_rounds_resume_identically() -> None:
    run, plan = config(TWO), design(*STRENGTH, budget=900)
    results = whole(run, plan)
    ends = [0]
    while specs := next_round(run, plan, results[: ends[-1]]):
        ends.append(ends[-1] + len(specs))
    assert len(ends) > 10
    for end in ends[1:-1:5]:
        again = results[:end]
        while specs := next_round(run, plan, again):
            again += map(played, specs)
        assert again == results


def test_budget_goes_to_the_widest_intervals() -> None:
    run, plan = config(TWO), design(*STRENGTH, budget=600)
    results = whole(run, plan)
    assert len(results) == number_of_games(run, plan) == 600
    met = Counter(frozenset(names(each.spec)) for each in results)
    assert met[frozenset(("even", "level"))] > 1.2 * met[frozenset(("strong", "weak"))]
    widths = {
        pair: tally.score().high - tally.score().low
        for pair, tally in tallies(map(ranking, results)).items()  # type: ignore[arg-type]
    }
    assert max(widths.values()) < 1.25 * min(widths.values())
    sides = Counter(names(each.spec) for each in results)
    assert all(count == sides[pair[::-1]] for pair, count in sides.items()), "both ways"


@every_row("budget", 24, 25, 31)
def test_small_budgets_are_spent_in_whole_deals(budget: int) -> None:
    run, plan = config(TWO), design(*STRENGTH, budget=budget)
    assert least_budget(run, plan) == 6 * 2 * FIRST_DEALS == 24
    assert len(whole(run, plan)) == budget - budget % 2


def test_payoffs_are_averaged_by_pair_and_deal() -> None:
    results = whole(config(TWO), design("strong", "weak", deals=20))
    found = pair_payoffs(results)
    wins = sum(each.outcomes[names(each.spec).index("strong")] > 0 for each in results)
    mean = 2 * (2 * wins - 40) / 40
    own = found["strong", "weak"]
    assert own.mean == pytest.approx(mean) and own.share == pytest.approx(mean / 4)
    assert own.interval is not None and own.interval.low < mean < own.interval.high
    assert found["weak", "strong"].mean == pytest.approx(-mean)
    assert pair_payoffs([replace(each, stakes=None) for each in results]) == {}


def test_matrix_uses_payoffs_or_wins() -> None:
    results = whole(config(TWO), design("strong", "even", "weak"))
    order = ["strong", "even", "weak"]
    against = tallies(map(ranking, results))  # type: ignore[arg-type]
    by_payoff, _ = payoff_matrix(order, against, pair_payoffs(results))
    by_wins, errors = payoff_matrix(order, against, {})
    assert errors.diagonal() == pytest.approx(0.0) and 0.1 < errors[0, 1] < 0.6
    assert by_payoff == pytest.approx(by_wins / 2)
    assert by_payoff == pytest.approx(-by_payoff.T)


def test_joint_outcomes_by_first_seat_and_tallies_by_pair() -> None:
    results = whole(config(TWO), design("even", "weak", with_itself=True))
    paid: dict[tuple[str, ...], float] = {("even", "even"): 2.0, ("weak", "weak"): 2.0}
    paid["even", "weak"] = 0.5
    shared = [replace(e, outcomes=[paid.get(names(e.spec), -1.0) / 2] * 2) for e in results]
    assert won_together(["even", "weak"], shared) == pytest.approx(
        np.array([[2.0, 0.5], [-1.0, 2.0]])
    )
    results = whole(config(THREE), design("strong", "weak", deals=10))
    found = tallies(map(ranking, results))  # type: ignore[arg-type]
    assert found["strong", "weak"].games == len(results) == 60
    assert found["strong", "weak"] == found["weak", "strong"].turned
    assert found["strong", "weak"].score().low > 0.5


def test_newest_versions_are_compared_with_earlier_ones() -> None:
    one_way = {}
    for version in range(20):
        one_way["main@20", f"main@{version}"] = Tally(wins=5, losses=5 + version)
        one_way["main@19", f"main@{version}"] = Tally(wins=5, losses=5)
        one_way["random", f"main@{version}"] = Tally(losses=99)
    one_way["main", "main@2"] = Tally(losses=99)  # a fixed opponent with the policy's name
    found = one_way | {(b, a): tally.turned for (a, b), tally in one_way.items()}
    (worst,) = least_against_past(found).values()
    assert worst.opponent == "main@17" and worst.games == (5 + 22) + 10
    assert worst.compared == 18, "the newest tenth of 20 counts as one player"
    assert least_against_past({("random", "expert"): Tally(losses=99)}) == {}
