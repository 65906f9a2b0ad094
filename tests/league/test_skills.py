"""Skills equal the `trueskill` package's, match after match; a pinned player keeps its skill."""

import random

import pytest
import trueskill

from tests.helpers.builders import game
from unstable.league.ratings import Registry
from unstable.league.skills import ENVIRONMENT, Match, Skill, rate
from unstable.types import GameResult, PlayerId

RANDOM, EXPERT = PlayerId("random"), PlayerId("expert")


def test_two_player_matches_equal_the_trueskill_package() -> None:
    """New, experienced and pinned players; even and one-sided matches; all draw rates."""
    chance = random.Random(0)
    ours: dict[str, Skill] = {}
    theirs: dict[str, trueskill.Rating] = {}
    for number in range(6):
        mu, sigma = (25.0, 0.01) if number == 0 else (chance.uniform(0, 60), 25 / 3 / (1 + number))
        ours[f"{number}"] = mu, sigma
        theirs[f"{number}"] = ENVIRONMENT.create_rating(mu, sigma)
    for _ in range(400):
        pair = chance.sample([*theirs], 2)
        scores = chance.choice([(0.0, 0.0), (1.0, -1.0), (-1.0, 1.0)])
        draws = chance.choice([0.01, 0.1, 0.6, 0.95])
        rate(ours, [Match((pair[0], pair[1]), scores, draws)], pinned="0")
        environment = trueskill.TrueSkill(draw_probability=draws)
        rated = environment.rate([(theirs[each],) for each in pair], [-score for score in scores])
        theirs |= {p: r for p, (r,) in zip(pair, rated, strict=True) if p != "0"}
    for player, (mu, sigma) in ours.items():
        expected = theirs[player]
        assert (mu, sigma) == pytest.approx((expected.mu, expected.sigma), abs=1e-4)
    assert ours["0"] == (25.0, 0.01)


@pytest.mark.parametrize("scores", [(0.0, 0.0), (1.0, -1.0), (-1.0, 1.0)])
def test_extreme_skill_gaps_stay_finite(scores: tuple[float, float]) -> None:
    for far in (100.0, 1000.0, 1e6):
        skills = {"one": (far, 1.0), "other": (0.0, 1.0)}
        rate(skills, [Match(("one", "other"), scores, 0.1)], pinned=None)
        (one, first), (other, second) = skills.values()
        assert 0 < first < 1.01 and 0 < second < 1.01
        assert (one < far) == (other > 0) == (scores[0] <= scores[1])


def registry() -> Registry:
    return Registry([RANDOM, EXPERT], anchor=RANDOM, pool_size=2)


def games(version: int, count: int, chance: random.Random) -> list[GameResult]:
    """Games of two and of three players, including draws and forfeits."""
    made = []
    for number in range(count):
        others = chance.sample(["random", "expert", f"main@{max(0, version - 1)}"], 2)
        players = [f"main@{version}", *others[: 1 + number % 2]]
        outcomes = [chance.choice([-1.0, 0.0, 0.0, 1.0]) for _ in players]
        forfeit = 0 if number % 7 == 0 else None
        made.append(game(players, outcomes, game_id=number, turns=6, forfeit=forfeit))
    return made


def play(made: Registry, versions: range, seed: int = 1, together: int = 9) -> None:
    for version in versions:
        made.add(PlayerId.policy(version))
        made.announce(PlayerId.policy(version))
        played = games(version, 40, random.Random(f"{seed} {version}"))
        for first in range(0, len(played), together):
            made.record(played[first : first + together])


def test_ratings_do_not_depend_on_batching() -> None:
    one, many = registry(), registry()
    play(one, range(3), together=1)
    play(many, range(3), together=40)
    assert one.state() == many.state()
    (pinned,) = [row for row in many.ratings() if row.player == RANDOM]
    assert pinned.mu == 25.0
    again = registry()
    again.restore(many.state())
    for made in (again, many):
        play(made, range(3, 5), seed=2)
    assert many.state() == again.state()
