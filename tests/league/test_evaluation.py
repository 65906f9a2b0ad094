"""Evaluation games are the same for every version, balanced over seats, and scored honestly."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.helpers.builders import game, sampled, turn
from tests.helpers.mistakes import refused
from tests.helpers.rows import every_row
from unstable.config import parse
from unstable.league.evaluation import (
    distinct_games,
    evaluation_games,
    evaluation_scores,
    game_scores,
    rated_games,
)
from unstable.types import GameResult, PlayerId
from unstable.types.intervals import mean_interval, wilson_interval


def test_deals_are_played_from_every_seat_without_training() -> None:
    config = parse({"eval": {"games": 6, "opponents": ["random", "base"], "temperature": 0.5}})
    specs = evaluation_games(config, version=3)
    assert len(specs) == 12
    assert [spec.game_id for spec in specs] == list(range(12))
    assert not any(seat.trained for spec in specs for seat in spec.seats)
    assert {seat.temperature for spec in specs for seat in spec.seats} == {0.5}
    for first, second in zip(specs[::2], specs[1::2], strict=True):
        assert first.seed == second.seed
        players = [seat.player for seat in first.seats]
        assert players[0] == PlayerId.policy(3)
        assert [seat.player for seat in second.seats] == players[::-1]
    assert len({spec.seed for spec in specs[:6]}) == 3
    # Both opponents play the same deals.
    assert [spec.seed for spec in specs[:6]] == [spec.seed for spec in specs[6:]]


def test_temperatures_share_games_and_only_the_first_is_rated() -> None:
    once = evaluation_games(parse({"eval": {"games": 4, "opponents": ["random", "base"]}}), 2)
    temperatures = {"games": 4, "opponents": ["random", "base"], "temperature": [1.0, 0.0]}
    config = parse({"eval": temperatures})
    specs = evaluation_games(config, version=2)
    sampled, greedy = specs[:8], specs[8:]
    assert sampled == once
    assert [spec.game_id for spec in specs] == list(range(16))
    for one, other in zip(sampled, greedy, strict=True):
        assert (one.env, one.seed) == (other.env, other.seed)
        assert [seat.player for seat in one.seats] == [seat.player for seat in other.seats]
        assert {seat.temperature for seat in other.seats} == {0.0}

    results = [
        replace(game(), spec=spec, outcomes=[1.0, -1.0] if spec in greedy else [0, 0])
        for spec in specs
    ]
    scores = evaluation_scores(2, results)
    named = [(score.opponent, score.temperature, score.games) for score in scores]
    assert named == [(who, t, 4) for t in (1.0, 0.0) for who in ("random", "base")]
    assert [score.score for score in scores] == [0.5] * 4
    assert [score.draws for score in scores] == [4, 4, 0, 0]
    assert rated_games(config, 2, results) == results[:8]
    held = parse({"eval": temperatures | {"constrained": True}})
    assert rated_games(held, 2, results) == []


def test_gain_compares_with_version_0_at_the_same_temperature() -> None:
    config = parse({"eval": {"games": 2, "temperature": [1.0, 0.0]}})

    def play(version: int, outcomes: list[list[float]]) -> list[GameResult]:
        pairs = zip(evaluation_games(config, version), outcomes, strict=True)
        return [replace(game(), spec=spec, outcomes=each) for spec, each in pairs]

    win, loss = [1.0, -1.0], [-1.0, 1.0]  # for seat 0, the version's seat in every other game
    first = game_scores(0, play(0, [win, win, loss, win]))
    sampled, greedy = evaluation_scores(4, play(4, [win, win, win, loss]), first)
    assert (sampled.temperature, sampled.score, sampled.gain) == (1.0, 0.5, 0.0)
    assert (greedy.temperature, greedy.score, greedy.gain) == (0.0, 1.0, 1.0)


@every_row("given", [], [1.0, 1], -0.5, [0.5, -1], "hot")
def test_duplicate_or_negative_temperatures_are_rejected(given: object) -> None:
    refused(r"^eval\.temperature[^\n]*$", parse, {"eval": {"temperature": given}})


def test_versions_are_evaluated_on_the_same_games() -> None:
    config = parse({})
    before, after = evaluation_games(config, 0), evaluation_games(config, 8)
    for one, other in zip(before, after, strict=True):
        assert (one.game_id, one.seed, one.env) == (other.game_id, other.seed, other.env)
        names = {PlayerId.policy(0): PlayerId.policy(8)}
        renamed = (replace(seat, player=names.get(seat.player, seat.player)) for seat in one.seats)
        assert tuple(renamed) == other.seats


def test_three_seats_rotate_and_single_seats_have_no_opponent() -> None:
    three = parse({"games": [{"env": "LiarsDice-v0", "seats": 3}], "eval": {"games": 4}})
    specs = evaluation_games(three, 0)
    places = [[seat.player for seat in spec.seats].index(PlayerId.policy(0)) for spec in specs]
    assert places == [0, 1, 2, 0, 1, 2]
    alone = parse({"games": [{"env": "TowerOfHanoi-v0", "seats": 1}], "eval": {"games": 4}})
    assert [len(spec.seats) for spec in evaluation_games(alone, 0)] == [1] * 4


def test_scores_count_forfeits_separately() -> None:
    players = ("main@2", "random")
    results = [
        game(players, (1.0, -1.0), purpose="eval"),
        game(players[::-1], (-1.0, 1.0), purpose="eval"),
        game(players, (0.0, 0.0), purpose="eval"),
        game(players, (-1.0, 0.0), purpose="eval", forfeit=0),
        game(players, (0.0, -1.0), purpose="eval", forfeit=1),
    ]
    (score,) = evaluation_scores(2, results)
    assert (score.wins, score.draws, score.losses, score.forfeits) == (3, 1, 1, 1)
    assert score.score == pytest.approx(0.7)
    assert score.legal_moves == pytest.approx(0.9)
    assert score.low < 0.7 < score.high


def test_wilson_interval_matches_textbook_values() -> None:
    # Textbook interval of 8 of 10: (0.4902, 0.9433).
    assert wilson_interval(0.8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)


@given(st.integers(1, 200).flatmap(lambda n: st.tuples(st.integers(0, 2 * n), st.just(n))))
def test_wilson_interval_contains_its_share(case: tuple[int, int]) -> None:
    halves, count = case
    share = halves / 2 / count
    low, high = wilson_interval(share, count)
    assert 0 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1
    assert high - low > 0


def test_gains_are_paired_by_game() -> None:
    def played(version: int, outcomes: list[float]) -> list:
        player = f"main@{version}"
        seats = [(player, "random"), ("random", player)] * (len(outcomes) // 2)
        won = [
            (worth, -worth) if players[0] == player else (-worth, worth)
            for players, worth in zip(seats, outcomes, strict=True)
        ]
        pairs = enumerate(zip(seats, won, strict=True))
        return [game(*each, purpose="eval", game_id=number) for number, each in pairs]

    before = played(0, [1, -1, 0, -1, 1, -1])
    after = played(3, [1, 1, 1, -1, -1, 1])
    first = game_scores(0, before)
    assert first == {0: 1.0, 1: 0.0, 2: 0.5, 3: 0.0, 4: 1.0, 5: 0.0}
    (score,) = evaluation_scores(3, after, first)
    gains = [0, 1, 0.5, 0, -1, 1]
    assert score.gain == pytest.approx(sum(gains) / 6)
    assert score.gain_low is not None and score.gain_high is not None
    assert (score.gain_low, score.gain_high) == mean_interval(gains, -1.0, 1.0)[1:]
    (alone,) = evaluation_scores(3, after)
    assert alone.gain is None


def test_interval_of_equal_zeros_has_width() -> None:
    mean, low, high = mean_interval([0.0] * 16, -1.0, 1.0)
    assert mean == 0
    assert 0.05 < high < 0.2
    assert low == pytest.approx(-high)


@given(st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]) | st.floats(-1, 1), min_size=1))
def test_gain_interval_contains_its_mean_within_the_range(gains):
    mean, low, high = mean_interval(gains, -1.0, 1.0)
    assert mean == pytest.approx(sum(gains) / len(gains), abs=1e-9)
    assert -1 <= low <= mean + 1e-9
    assert mean - 1e-9 <= high <= 1
    assert low < high


def test_mean_interval_without_draws_equals_wilson() -> None:
    values = [1.0] * 8 + [0.0] * 2
    assert mean_interval(values, 0.0, 1.0)[1:] == pytest.approx(wilson_interval(0.8, 10))


@pytest.mark.parametrize("draws", [0.0, 0.4, 0.8])
@pytest.mark.parametrize("games", [16, 64, 256])
def test_intervals_cover_the_true_score_in_95_percent(games: int, draws: float) -> None:
    """By simulation, over shares of wins among the decided games from 0.05 to 0.95."""
    random = np.random.default_rng(0)
    held = []
    for wins in np.linspace(0.05, 0.95, 19):
        truth = (1 - draws) * wins + draws / 2
        kinds = [(1 - draws) * (1 - wins), draws, (1 - draws) * wins]
        found = Counter(map(tuple, random.multinomial(games, kinds, size=4000).tolist()))
        inside = 0
        for (lost, drawn, won), times in found.items():
            values = [0.0] * lost + [0.5] * drawn + [1.0] * won
            _, low, high = mean_interval(values, 0.0, 1.0)
            inside += times * (low <= truth + 1e-12 and truth <= high + 1e-12)
        held.append(inside / 4000)
    assert 0.94 <= np.mean(held) <= (0.97 if (games, draws) == (16, 0.8) else 0.96)
    assert min(held) > 0.91


def played(
    actions: str, seat: int = 0, temperature: float = 0.0, opponent: str = "base", **changes: object
) -> GameResult:
    """Return a two-seat game, one letter per action; the opponent is equally greedy, or a bot."""
    players = ("main@2", opponent) if seat == 0 else (opponent, "main@2")
    own = {
        player: None if player == "bot" else sampled(2, temperature=temperature)
        for player in players
    }
    turns = [
        turn(i % 2, i, who, observation=actions[:i], action=action, sampled=own[who])
        for i, action in enumerate(actions)
        for who in [players[i % 2]]
    ]

    result = game(players, (1.0, -1.0), purpose="eval", **changes)  # type: ignore[arg-type]
    return replace(result, turns=turns)


def test_greedy_games_count_once_per_transcript() -> None:
    """64 greedy games with two distinct transcripts count as two."""
    results = [played("abab", seat=number % 2, game_id=number) for number in range(64)]
    (row,) = evaluation_scores(2, results)
    assert (row.games, row.distinct, row.score) == (64, 2, 0.5)
    assert (row.low, row.high) == mean_interval([1.0, 0.0], 0.0, 1.0)[1:]
    assert row.needed is None
    (row,) = evaluation_scores(2, results, {number: 0.5 for number in range(64)})
    assert (row.gain_low, row.gain_high) == mean_interval([0.5, -0.5], -1.0, 1.0)[1:]
    assert row.needed is None


@every_row(
    "results, distinct",
    ([played("ab"), played("ab"), played("ac")], 2),
    ([played("ab"), played("ab", seat=1)], 2),
    ([played("ab"), played("ab", temperature=0.5)], 2),
    # A bot counts as random once it answers one position in two ways.
    ([played("ab", opponent="bot"), played("ab", opponent="bot")], 1),
    ([played("ab", opponent="bot")] * 2 + [played("ac", opponent="bot")], 3),
    ([played("ab", opponent="bot")] * 2 + [played("bc", opponent="bot")], 2),
    # Observations and outcomes count: another deal is another game.
    ([played("ab"), replace(played("ab"), outcomes=[0.0, 0.0])], 2),
)
def test_equal_games_count_fully_if_a_player_is_random(results, distinct):
    assert distinct_games(2, results) == distinct


def sure(score: float, other: float, games: int, times: int = 4000) -> float:
    """Simulate how often Newcombe's interval of two shares' difference excludes 0."""
    random = np.random.default_rng(0)
    centres, ends = [], []
    for share in (score, other):
        seen, found = np.unique(random.binomial(games, share, size=times), return_inverse=True)
        table = np.array([wilson_interval(count / games, games) for count in seen])
        centres.append(seen[found] / games)
        ends.append(table[found])
    gaps = [np.abs(each - centre[:, None]) for centre, each in zip(centres, ends, strict=True)]
    difference = centres[0] - centres[1]
    low = difference - np.hypot(gaps[0][:, 0], gaps[1][:, 1])
    high = difference + np.hypot(gaps[0][:, 1], gaps[1][:, 0])
    return float(np.mean((low > 0) | (high < 0)))


@every_row(
    "won, needed", (256, 150), (254, 196), (251, 264), (243, 436), (128, 1563), (5, 196 + 68)
)
def test_needed_games_of_extreme_scores_cover_a_difference(won, needed):
    """All wins have no variance, but a slightly lower score has."""
    results = [
        game(("main@2", "random"), (worth, -worth), purpose="eval")
        for worth in [1.0] * won + [-1.0] * (256 - won)
    ]
    (row,) = evaluation_scores(2, results)
    assert row.needed == pytest.approx(needed, abs=1)
    share = won / 256
    other = share + (0.05 if share < 0.5 else -0.05)
    assert row.needed is not None
    assert 0.77 < sure(share, other, row.needed) < 0.9


@every_row("differing, needed", (0, 150), (1, 150), (64, 798))
def test_needed_games_of_equal_pairs_assume_gains_of_whole_wins(differing, needed):
    results = [
        game(("main@2", "random"), (1.0, -1.0), purpose="eval", game_id=number)
        for number in range(128)
    ]
    first = {number: float(number >= differing) for number in range(128)}
    (row,) = evaluation_scores(2, results, first)
    assert row.needed == pytest.approx(needed, rel=0.01)
    if differing == 0:  # few distinct gains, so that all can be enumerated
        chances = np.random.default_rng(0).binomial(150, 0.05, size=4000)
        lows = {
            k: mean_interval([1.0] * k + [0.0] * (150 - k), -1.0, 1.0).low for k in set(chances)
        }
        assert np.mean([lows[k] > 0 for k in chances]) > 0.75


def test_paired_comparison_needs_fewer_games() -> None:
    results = [
        game(("main@2", "random"), (worth, -worth), purpose="eval", game_id=number)
        for number, worth in enumerate([1.0, -1.0] * 32)
    ]
    scores = game_scores(2, results)
    (alone,), (paired,) = evaluation_scores(2, results), evaluation_scores(2, results, scores)
    assert alone.needed is not None and paired.needed is not None
    assert paired.needed < alone.needed / 10
