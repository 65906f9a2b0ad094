"""Invariant 16: draws are draws, nobody is rated against itself, the anchor never moves."""

import json

import pytest

from tests.builders import game
from unstable.league.ratings import Registry


def registry() -> Registry:
    made = Registry(["random", "minimax"], anchor="random", pool_size=2)
    made.add(0)
    return made


def rating(made: Registry, player: str) -> tuple[float, float]:
    (row,) = [row for row in made.ratings() if row.player == player]
    return row.mu, row.sigma


def test_a_win_raises_and_a_loss_lowers_and_the_anchor_stays() -> None:
    made = registry()
    made.record(game(("policy@0", "random"), (1.0, -1.0)))
    up, _ = rating(made, "policy@0")
    assert up > 25
    assert rating(made, "random")[0] == 25
    for _ in range(5):
        made.record(game(("random", "policy@0"), (1.0, -1.0)))
    assert rating(made, "policy@0")[0] < up
    assert rating(made, "random")[0] == 25


def test_draws_against_the_anchor_pull_a_player_to_it() -> None:
    made = registry()
    for _ in range(10):
        made.record(game(("minimax", "random"), (1.0, -1.0)))
    high, _ = rating(made, "minimax")
    for _ in range(60):
        made.record(game(("minimax", "random"), (0.0, 0.0)))
    mu, sigma = rating(made, "minimax")
    assert 25 < mu < high
    assert sigma < 2


def test_a_mirror_game_is_counted_and_not_rated() -> None:
    made = registry()
    before = rating(made, "policy@0")
    made.record(game(("policy@0", "policy@0"), (1.0, -1.0)))
    assert rating(made, "policy@0") == before
    (row,) = made.ratings()
    assert (row.games, row.wins, row.losses) == (1, 1, 1)


def test_a_player_in_two_of_three_seats_is_rated_once_with_their_mean() -> None:
    made = registry()
    made.record(game(("random", "policy@0", "random"), (-1.0, 1.0, 0.0), turns=3))
    assert rating(made, "policy@0")[0] > 25


@pytest.mark.parametrize("worth", [-1.0, 0.0])
def test_a_forfeit_is_a_loss_and_counted_apart(worth: float) -> None:
    made = registry()
    made.record(game(("policy@0", "random"), (worth, 0.0), forfeit=0))
    (row,) = [row for row in made.ratings() if row.player == "policy@0"]
    assert (row.losses, row.forfeits) == (1, 1)
    assert row.mu < 25


def test_a_new_version_starts_where_the_last_one_stood_but_unsure() -> None:
    made = registry()
    for _ in range(30):
        made.record(game(("policy@0", "random"), (1.0, -1.0)))
    mu, sigma = rating(made, "policy@0")
    made.add(1)
    made.current = 1
    assert rating(made, "policy@1")[0] == pytest.approx(mu)
    assert rating(made, "policy@1")[1] > sigma


def test_the_pool_is_the_newest_past_versions() -> None:
    made = registry()
    for version in (1, 2, 3):
        made.add(version)
        made.current = version
    assert made.past() == [1, 2]
    made.add(4)  # entered, not yet announced
    assert made.past() == [1, 2]


def test_state_survives_json() -> None:
    made = registry()
    made.add(1)
    made.current = 1
    made.record(game(("policy@1", "policy@0"), (0.0, 0.0)))
    other = Registry(["random", "minimax"], anchor="random", pool_size=2)
    other.restore(json.loads(json.dumps(made.state())))
    assert other.ratings() == made.ratings()
    assert (other.current, other.past()) == (1, [0])
