"""Two players are rated as the `trueskill` package rates them, to the bit."""

import random

import pytest
import trueskill

from unstable.league.duel import rate


@pytest.mark.parametrize("drawn", [True, False])
def test_two_players_are_rated_as_by_the_package_to_the_bit(drawn: bool) -> None:
    chance = random.Random(7)
    environment = trueskill.TrueSkill()
    for _ in range(3000):
        one, two = (
            trueskill.Rating(
                chance.choice([25.0, chance.uniform(-30, 80)]),
                chance.choice([25 / 3, 0.01, chance.uniform(0.3, 9)]),
            )
            for _ in range(2)
        )
        draws = chance.uniform(0.001, 0.95)
        groups, ranks = [(each,) for each in (one, two)], [0, 0 if drawn else 1]
        package = trueskill.TrueSkill(draw_probability=draws)
        try:
            expected = [tuple(each) for (each,) in package.rate(groups, ranks)]
        except FloatingPointError:
            with pytest.raises(FloatingPointError):
                rate(environment, one, two, draws, drawn=drawn)
            continue
        found = rate(environment, one, two, draws, drawn=drawn)
        assert [tuple(each) for each in found] == expected
