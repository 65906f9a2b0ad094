"""Nash averaging, alpha-rank, cycles, worst cases and joint policy correlation."""

import sys
from types import ModuleType

import numpy as np
import pytest

from unstable.studies.tournament.metagame import (
    Correlation,
    alpha_rank,
    cycles,
    joint_policy_correlation,
    nash_average,
    nash_shares,
)
from unstable.types.tallies import Tally, added, least_score

ROCK_PAPER_SCISSORS = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])


def test_noisy_payoffs_give_wide_nash_intervals() -> None:
    sure = nash_shares(ROCK_PAPER_SCISSORS, np.full((3, 3), 0.01), seed=1)
    unsure = nash_shares(ROCK_PAPER_SCISSORS * 0.1, np.full((3, 3), 0.1), seed=1)
    for low, high in sure:
        assert 0.31 < low < 1 / 3 < high < 0.36
    assert min(high - low for low, high in unsure) > 0.5
    assert nash_shares(ROCK_PAPER_SCISSORS, np.full((3, 3), 0.01), seed=1) == sure


def random_game(chance: np.random.Generator, count: int) -> np.ndarray:
    """Return an antisymmetric game of small integers, often with several equilibria."""
    upper = np.triu(np.round(chance.normal(size=(count, count))), 1)
    return np.asarray(upper - upper.T)


def test_nash_average_of_copies_and_transitive_games() -> None:
    """Balduzzi's first property: two rocks share the probability of one."""
    places = [0, 0, 1, 2]
    found = nash_average(ROCK_PAPER_SCISSORS[np.ix_(places, places)])
    assert found.mixture == pytest.approx([1 / 6, 1 / 6, 1 / 3, 1 / 3], abs=1e-8)
    assert found.worth == pytest.approx([0.0] * 4, abs=1e-8)
    strengths = np.array([1.0, 3.0, 2.0])
    found = nash_average(np.tanh(strengths[:, None] - strengths))
    assert found.mixture == pytest.approx([0.0, 1.0, 0.0])
    assert found.worth == pytest.approx([-np.tanh(2.0), 0.0, -np.tanh(1.0)])
    assert nash_average(np.zeros((3, 3))).mixture == pytest.approx([1 / 3] * 3)
    assert nash_average(np.zeros((1, 1))).mixture == [1.0]


def test_no_player_beats_the_nash_average() -> None:
    chance = np.random.default_rng(1)
    for count in (2, 3, 5, 8, 20):
        for _ in range(10):
            game = random_game(chance, count)
            found = nash_average(game)
            assert max(found.worth) < 1e-7 * max(1.0, np.abs(game).max())
            assert sum(found.mixture) == pytest.approx(1.0)


def test_nash_average_has_maximal_entropy() -> None:
    optimize = pytest.importorskip("scipy.optimize", reason="scipy is not installed")
    chance = np.random.default_rng(2)

    def entropy(mixture: np.ndarray) -> float:
        return -float((mixture * np.log(np.maximum(mixture, 1e-300))).sum())

    for _ in range(15):
        game = np.sign(random_game(chance, int(chance.integers(3, 7))))
        count = len(game)
        best = max(
            (
                optimize.minimize(
                    lambda mixture: -entropy(mixture),
                    chance.dirichlet(np.ones(count)),
                    method="SLSQP",
                    bounds=[(0, 1)] * count,
                    constraints=[
                        {"type": "eq", "fun": lambda mixture: mixture.sum() - 1},
                        {"type": "ineq", "fun": lambda mixture, game=game: -game @ mixture},
                    ],
                    options={"maxiter": 500, "ftol": 1e-12},
                ).x
                for _ in range(4)
            ),
            key=lambda mixture: (bool((game @ mixture).max() < 1e-6), entropy(mixture)),
        )
        assert nash_average(game).mixture == pytest.approx(best, abs=1e-4)


def test_alpha_rank_matches_open_spiel(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspiel", reason="OpenSpiel is not installed")
    drawing = "open_spiel.python.egt.alpharank_visualizer"  # needs matplotlib
    monkeypatch.setitem(sys.modules, drawing, ModuleType(drawing))
    from open_spiel.python.egt import alpharank

    chance = np.random.default_rng(3)
    for count in (2, 3, 5, 8):
        payoffs = chance.normal(size=(count, count))
        theirs = alpharank.compute([payoffs], m=50, use_inf_alpha=True, inf_alpha_eps=0.01)[2]
        assert alpha_rank(payoffs) == pytest.approx(theirs, abs=1e-9)
    assert alpha_rank(ROCK_PAPER_SCISSORS) == pytest.approx([1 / 3] * 3)
    assert alpha_rank(np.zeros((1, 1))) == [1.0]


def both_ways(tallies: dict[tuple[str, str], Tally]) -> dict[tuple[str, str], Tally]:
    return tallies | {(b, a): tally.turned for (a, b), tally in tallies.items()}


def test_cycles_require_significant_scores() -> None:
    clear, thin = Tally(wins=40, losses=8), Tally(wins=5, losses=3)
    beats = {("rock", "scissors"): clear, ("scissors", "paper"): clear, ("paper", "rock"): clear}
    assert cycles(both_ways(beats)) == [["paper", "rock", "scissors"]]
    assert cycles(both_ways(beats | {("paper", "rock"): thin})) == []
    ordered = {("a", "b"): clear, ("b", "c"): clear, ("a", "c"): clear}
    assert cycles(both_ways(ordered)) == []
    longer = {("a", "b"): clear, ("b", "c"): clear, ("c", "d"): clear, ("d", "a"): clear}
    assert cycles(both_ways(longer)) == [["a", "b", "c", "d"]]


def test_equal_players_rarely_form_a_cycle() -> None:
    """All pairs' intervals hold jointly: twelve equal players, 66 pairs, 32 games each."""
    chance, named = np.random.default_rng(4), 0
    names = [f"p{number:02d}" for number in range(12)]
    for _ in range(20):
        tallies = {}
        for place, one in enumerate(names):
            for other in names[place + 1 :]:
                wins = int(chance.binomial(32, 0.5))
                tallies[one, other] = Tally(wins=wins, losses=32 - wins)
        named += bool(cycles(both_ways(tallies)))
    assert named == 0


def test_interval_of_lowest_score_covers_the_true_one() -> None:
    chance, hits, below = np.random.default_rng(5), [], []
    true = [0.5, 0.45, 0.6, 0.55, 0.5, 0.7]
    for _ in range(300):
        tallies = {}
        for number, score in enumerate(true):
            wins = int(chance.binomial(30, score))
            tallies[f"main@{number}"] = Tally(wins=wins, losses=30 - wins)
        found = least_score(tallies)
        assert found is not None and found.compared == 6
        hits.append(found.score.low <= min(true) <= found.score.high)
        below.append(found.score.mean - min(true))
    assert np.mean(hits) >= 0.95
    assert np.mean(below) < 0, "the lowest of several means is biased low"


def test_worst_case_skips_pairs_with_few_games() -> None:
    tallies = {"main@0": Tally(losses=3), "main@1": Tally(wins=9, draws=2, losses=9)}
    found = least_score(tallies)
    assert found is not None
    assert (found.opponent, found.games, found.compared, found.left_out) == ("main@1", 20, 1, 1)
    assert found.score == tallies["main@1"].score() and found.score.mean == 0.5
    assert least_score({"main@0": Tally(losses=3)}) is None
    assert added(tallies.values()) == Tally(9, 2, 12)


def test_joint_policy_correlation_matches_the_paper() -> None:
    """Figure 3 of arXiv:1711.00832: 30.44 on the diagonal and 20.03 off it: a loss of 34.2 %."""
    together = np.full((5, 5), 20.03)
    np.fill_diagonal(together, 30.44)
    found = joint_policy_correlation(together)
    assert found == pytest.approx(Correlation(30.44, 20.03))
    assert found.loss == pytest.approx(0.342, abs=5e-4)
    assert joint_policy_correlation(np.zeros((2, 2))).loss is None
    # Means: diagonal (4 + 6 + 5) / 3, off-diagonal (1 + 2 + 3 + 0 + 1 + 5) / 6.
    found = joint_policy_correlation(np.array([[4.0, 1, 2], [3, 6, 0], [1, 5, 5]]))
    assert found == pytest.approx((5.0, 2.0)) and found.loss == pytest.approx(0.6)
