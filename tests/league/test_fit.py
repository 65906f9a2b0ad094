"""The fit over all games: closed forms, coverage, order, several sides, draws, forfeits."""

import math
import random
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
import pytest

from tests.helpers.builders import game
from unstable.league.fit import POINTS, PRIOR, Ranking, RatingFit, fit, ranking
from unstable.types.intervals import Z

NORMAL = NormalDist()
BETA = 25 / 6
"""TrueSkill's spread of a performance."""
RESULTS = ((0, 1), (0, 0), (1, 0))
Chances = Callable[[float, float], tuple[float, float, float]]
"""Win, draw and loss chances of the first of two, by difference of strengths and draw rate."""


def davidson(difference: float, draws: float) -> tuple[float, float, float]:
    """Return win, draw and loss chances by log-odds; `draws` is the share between equals."""
    odds = 2 * draws / (1 - draws)
    parts = (math.exp(difference / 2), odds, math.exp(-difference / 2))
    return parts[0] / sum(parts), parts[1] / sum(parts), parts[2] / sum(parts)


def trueskill(difference: float, draws: float) -> tuple[float, float, float]:
    """Win, draw and loss chances in TrueSkill's model, scaled to `davidson`'s slope at equality."""
    margin, width = NORMAL.inv_cdf((draws + 1) / 2), math.sqrt(2) * BETA
    own = difference * (1 - draws) * width / 4 / NORMAL.pdf(margin)
    win, loss = NORMAL.cdf(own / width - margin), NORMAL.cdf(-own / width - margin)
    return win, 1 - win - loss, loss


def pool(
    rise: float, games: int, draws: float, world: Chances, seed: int, versions: int = 12
) -> list[Ranking]:
    """Versions, each stronger by `rise`, each against the five before it, at either side."""
    chance = random.Random(seed)
    players, found = ["random"], []
    for version in range(versions):
        for _ in range(games):
            place = chance.randrange(max(0, len(players) - 5), len(players))
            difference = rise * (version - max(place - 1, 0))
            result = chance.choices(RESULTS, world(difference, draws))[0]
            seats = (f"main@{version}", players[place])
            if chance.random() < 0.5:
                seats, result = seats[::-1], result[::-1]
            found.append(Ranking("Nim-v0", seats, result))
        players.append(f"main@{version}")
    return found


def of(found: RatingFit) -> dict[str, float]:
    return {each.player: each.points.mean for each in found.strengths}


def hold(found: RatingFit, rise: float) -> list[bool]:
    """Return for each version whether its interval contains its true strength."""
    points = {each.player: each.points for each in found.strengths if each.player != "random"}
    true = {player: rise * int(player.partition("@")[2]) * POINTS for player in points}
    return [points[each].low <= true[each] <= points[each].high for each in points]


@pytest.mark.parametrize("world", [davidson, trueskill])
@pytest.mark.parametrize("draws", [0.1, 0.58])
@pytest.mark.parametrize("rise", [0.0, 0.3, 0.6])  # 0.6: about 2 in TrueSkill's unit
@pytest.mark.parametrize("games", [8, 32])
def test_intervals_cover_true_strengths(world, draws, rise, games):
    hits = []
    for seed in range(20):
        hits += hold(fit(pool(rise, games, draws, world, seed), anchor="random"), rise)
    assert 0.90 <= np.mean(hits) <= 0.98


@pytest.mark.parametrize("games", [8, 40])
@pytest.mark.parametrize("rise", [0.3, 0.6])
def test_intervals_cover_true_strengths_of_50_versions(rise: float, games: int) -> None:
    """50 versions, the last some 2,600 or 5,100 points above the first."""
    hits, last = [], []
    for seed in range(40):
        found = fit(pool(rise, games, 0.1, davidson, seed, 50), anchor="random")
        hits += hold(found, rise)
        last.append(of(found)["main@49"] / (rise * 49 * POINTS))
    assert 0.90 <= np.mean(hits) <= 0.98
    assert np.mean(last) == pytest.approx(1, abs=0.2)


def test_two_player_fit_matches_the_closed_form() -> None:
    """30 of 40 decisive games and a prior for each player, with the curvature of both."""
    games = [Ranking("a", ("x", "y"), (0, 1))] * 15 + [Ranking("a", ("y", "x"), (1, 0))] * 15
    games += [Ranking("a", ("x", "y"), (1, 0))] * 5 + [Ranking("a", ("y", "x"), (0, 1))] * 5
    found = fit(games, anchor="y")
    (first, second) = found.strengths
    difference = first.points.mean / POINTS  # d, where 30 - 40 p(d) = d / 2 PRIOR^2
    share = 1 / (1 + math.exp(-difference))
    assert 30 - 40 * share == pytest.approx(difference / 2 / PRIOR**2, abs=1e-6)
    deviation = 1 / math.sqrt(40 * share * (1 - share) + 1 / (2 * PRIOR**2))
    assert first.points.high - first.points.mean == pytest.approx(Z * deviation * POINTS)
    assert second.points == (0.0, 0.0, 0.0) and found.reference == "y"
    assert found.advantages[0].points.mean == pytest.approx(0.0, abs=1e-9)


def test_draw_counts_as_half_a_win() -> None:
    """In Davidson's model strengths depend only on wins plus half the draws."""
    games = pool(0.3, 32, 0.3, davidson, 5)
    seats = {seat for each in games for seat in each.players}
    theta = of(fit(games))
    assert sum(theta.values()) == pytest.approx(0.0, abs=1e-6)
    with_draws = fit([*games, *[Ranking("a", (seat, "new"), (0, 0)) for seat in sorted(seats)] * 9])
    assert min(theta.values()) < of(with_draws)["new"] < max(theta.values())
    assert with_draws.draws["a"] > 0.9 and with_draws.draws["Nim-v0"] == pytest.approx(0.3, abs=0.1)


def test_game_order_does_not_change_the_fit() -> None:
    games = [*pool(0.3, 32, 0.3, davidson, 1), *three_sided(200, 2)]
    found = fit(games, forfeits=0.3)
    for seed in range(5):
        random.Random(seed).shuffle(games)
        assert fit(games, forfeits=0.3) == found


def three_sided(count: int, seed: int) -> list[Ranking]:
    """Rankings of three of the players a to d (strengths 0 to 1.5), drawn place by place."""
    chance, found = random.Random(seed), []
    for _ in range(count):
        seats = chance.sample("abcd", 3)
        weights = [math.exp("abcd".index(seat) / 2) for seat in seats]
        order: list[int] = []
        while len(order) < 3:
            left = [place for place in range(3) if place not in order]
            order += chance.choices(left, [weights[place] for place in left])
        found.append(Ranking("three", tuple(seats), tuple(order.index(p) for p in range(3))))
    return found


def test_intervals_cover_true_strengths_with_three_sides() -> None:
    hits = []
    for seed in range(60):
        for each in fit(three_sided(40, seed)).strengths:
            true = ("abcd".index(each.player) / 2 - 0.75) * POINTS
            hits.append(each.points.low <= true <= each.points.high)
    assert 0.90 <= np.mean(hits) <= 0.98


def test_tied_losers_are_not_compared() -> None:
    """Winner takes all: only the first place carries information."""
    games = [Ranking("a", ("x", "y", "z"), (0, 1, 1))] * 6
    games += [Ranking("a", ("x", "y", "z"), (1, 0, 1))] * 3
    games += [Ranking("a", ("x", "y", "z"), (1, 1, 0))] * 1
    theta = of(fit(games))
    assert theta["x"] > theta["y"] > theta["z"]
    one = [Ranking("a", ("x", "y", "z"), (0, 1, 1))] * 60
    found = {each.player: each.points for each in fit(one).strengths}
    assert found["y"].mean == pytest.approx(found["z"].mean)
    assert found["y"].high - found["y"].low > 800, "sixty ties for last place separate y and z"


def test_undefeated_player_is_finite_and_forfeits_are_weighted() -> None:
    games = [Ranking("a", ("x", "y"), (0, 1), forfeit=True)] * 50
    whole = of(fit(games))["x"]
    assert 200 < whole < 1200
    assert of(fit(games, forfeits=0.1))["x"] < whole
    assert fit(games, forfeits=0.0).strengths == []


def test_side_advantages_need_more_evidence_than_the_prior() -> None:
    chance = random.Random(3)
    swapped = []
    for number in range(400):
        result = chance.choices(RESULTS, davidson(1.0, 0.1))[0]
        swapped.append(Ranking("a", ("x", "y") if number % 2 else ("y", "x"), result))
    first, second = fit(swapped).advantages
    assert first.points.low < 0.5 * POINTS < first.points.high
    assert first.points.mean == pytest.approx(-second.points.mean)
    assert fit([Ranking("a", ("x", "y"), (0, 1))] * 400).advantages == []
    mirror = [Ranking("a", ("x", "x"), (0, 1))] * 30 + [Ranking("a", ("x", "x"), (1, 0))] * 10
    assert fit(mirror).strengths == [] and fit(mirror).advantages[0].points.low > 0


def test_unconnected_groups_are_listed_and_sides_ranked() -> None:
    games = [Ranking("a", ("x", "y"), (0, 1)), Ranking("a", ("v", "w"), (0, 1))] * 4
    assert fit(games).apart == [["v", "w"], ["x", "y"]]
    assert fit([*games, Ranking("a", ("x", "v"), (0, 0))]).apart == []
    assert fit([]).strengths == [] and fit([]).apart == []
    assert ranking(game(("main@1", "random"), (0.0, 0.0))) == ("TicTacToe-v0", *drawn("main@1"))
    lost = ranking(game(("main@1", "random"), (0.0, 0.0), forfeit=0))
    assert lost == Ranking("TicTacToe-v0", ("main@1", "random"), (1, 0), forfeit=True)
    three = ranking(game(("a", "b", "c"), (-1.0, 1.0, -1.0), turns=3))
    assert three is not None and three.ranks == (1, 0, 1)
    assert ranking(game(("main@1",), (1.0,))) is None


def drawn(player: str) -> tuple[tuple[str, str], tuple[int, int], bool]:
    return (player, "random"), (0, 0), False
