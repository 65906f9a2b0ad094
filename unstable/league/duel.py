"""TrueSkill of two players: what the `trueskill` package makes of them, to the bit, much faster.

Its factor graph passes messages between objects, which is most of its time. With two players the
graph is a line; here the same operations on the same numbers come in the same order.
"""

import math
from typing import NamedTuple

import trueskill

TOLERANCE = 0.0001
"""The package's own: a smaller change ends its repetitions."""
MOST_REPEATS = 10


class _Normal(NamedTuple):
    """A normal distribution: its precision, and its mean times that."""

    pi: float
    tau: float

    @property
    def mu(self) -> float:
        return self.pi and self.tau / self.pi

    def times(self, other: "_Normal") -> "_Normal":
        return _Normal(self.pi + other.pi, self.tau + other.tau)

    def over(self, other: "_Normal") -> "_Normal":
        return _Normal(self.pi - other.pi, self.tau - other.tau)


def rate(
    environment: trueskill.TrueSkill,
    first: trueskill.Rating,
    second: trueskill.Rating,
    draw_probability: float,
    *,
    drawn: bool,
) -> tuple[trueskill.Rating, trueskill.Rating]:
    """New ratings of two players of whom the first has won, unless it was `drawn`.

    Raises `FloatingPointError` where the package does.
    """
    skills = [_skill(rating, environment.tau) for rating in (first, second)]
    performances = [_noisy(skill, environment.beta**2) for skill in skills]
    one, two = (_sum((each, 1)) for each in performances)
    difference = known = _sum((one, 1), (two, -1))
    margin = trueskill.calc_draw_margin(draw_probability, 2, environment)
    shift = environment.v_draw if drawn else environment.v_win
    shrink = environment.w_draw if drawn else environment.w_win
    message = _Normal(0, 0)
    for _ in range(MOST_REPEATS):
        free = difference.over(message)
        root = math.sqrt(free.pi)
        arguments = free.tau / root, margin * root
        rest = 1.0 - shrink(*arguments)
        found = _Normal(free.pi / rest, (free.tau + root * shift(*arguments)) / rest)
        message = found.times(message).over(difference)
        change = max(abs(difference.tau - found.tau), math.sqrt(abs(difference.pi - found.pi)))
        difference = found
        if change <= TOLERANCE:
            break
        difference = difference.over(known).times(known)
    said = difference.over(known)
    to_one = _sum((said, 1.0), (two, 1.0))
    new_one = one.times(to_one)
    new_two = two.times(_sum((new_one.over(to_one), 1.0), (said, -1.0)))
    return (
        _rating(skills[0], performances[0], one, new_one, environment.beta**2),
        _rating(skills[1], performances[1], two, new_two, environment.beta**2),
    )


def _skill(rating: trueskill.Rating, tau: float) -> _Normal:
    precision = math.sqrt(rating.sigma**2 + tau**2) ** -2
    return _Normal(precision, precision * rating.mu)


def _noisy(value: _Normal, variance: float) -> _Normal:
    share = 1.0 / (1.0 + variance * value.pi)
    return _Normal(share * value.pi, share * value.tau)


def _sum(*terms: tuple[_Normal, float]) -> _Normal:
    """The distribution of a weighted sum."""
    variance: float = 0
    mean: float = 0
    for value, weight in terms:
        mean += weight * value.mu
        variance = variance + weight**2 / value.pi if value.pi else math.inf
    precision = 1.0 / variance
    return _Normal(precision, precision * mean)


def _rating(
    skill: _Normal, performance: _Normal, team: _Normal, new_team: _Normal, variance: float
) -> trueskill.Rating:
    """What a team's new performance says of its player's skill."""
    said = _sum((new_team.over(team), 1.0))
    noisy = _noisy(performance.times(said).over(performance), variance)
    new = skill.times(noisy)
    return trueskill.Rating(new.mu, math.sqrt(1 / new.pi))
