"""Skills of players by TrueSkill, updated match after match.

Herbrich, Minka and Graepel 2006, TrueSkill: A Bayesian skill rating system. A match of two has a
closed form (section 3), which takes 3 us instead of the 140 us of the general algorithm in the
`trueskill` package. Both agree to 3e-5.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import trueskill

ENVIRONMENT = trueskill.TrueSkill()
Skill = tuple[float, float]
"""Mu and sigma of a player."""
_FAR = 30.0  # standard deviations beyond which a tail equals its asymptote


class Match(NamedTuple):
    """Finished free-for-all: Match(("main@3", "random"), (1.0, -1.0), 0.1)"""

    players: tuple[str, ...]
    scores: tuple[float, ...]
    draw_probability: float


def rate(skills: dict[str, Skill], matches: Iterable[Match], pinned: str | None) -> None:
    """Update skills by matches, one after the other; the `pinned` player keeps its skill."""
    for players, scores, draw_probability in matches:
        of = _of_two if len(players) == 2 else _of_many
        rated = of([skills[player] for player in players], scores, draw_probability)
        skills.update((p, skill) for p, skill in zip(players, rated, strict=True) if p != pinned)


def _of_many(
    before: Sequence[Skill], scores: Sequence[float], draw_probability: float
) -> list[Skill]:
    ranked = sorted(set(scores), reverse=True)
    groups = [(ENVIRONMENT.create_rating(mu, sigma),) for mu, sigma in before]
    environment = trueskill.TrueSkill(draw_probability=draw_probability)
    rated = environment.rate(groups, [ranked.index(score) for score in scores])
    return [(rating.mu, rating.sigma) for (rating,) in rated]


def _of_two(
    before: Sequence[Skill], scores: Sequence[float], draw_probability: float
) -> list[Skill]:
    first = 0 if scores[0] >= scores[1] else 1  # the winner
    (mu, sigma), (other_mu, other_sigma) = before[first], before[1 - first]
    variances = sigma**2 + ENVIRONMENT.tau**2, other_sigma**2 + ENVIRONMENT.tau**2
    spread = math.sqrt(2 * ENVIRONMENT.beta**2 + sum(variances))
    margin = NormalDist().inv_cdf((draw_probability + 1) / 2) * math.sqrt(2) * ENVIRONMENT.beta
    change = _drawn if scores[0] == scores[1] else _won
    shift, shrink = change((mu - other_mu) / spread, margin / spread)
    found = [
        (centre + sign * variance / spread * shift, math.sqrt(variance * (1 - variance * scale)))
        for centre, sign, variance, scale in zip(
            (mu, other_mu), (1, -1), variances, [shrink / spread**2] * 2, strict=True
        )
    ]
    return found if first == 0 else found[::-1]


def _won(lead: float, margin: float) -> tuple[float, float]:
    """Return mean and lost variance of a lead above the margin: v and w of the paper."""
    beyond = lead - margin
    v = -beyond if beyond < -_FAR else _density(beyond) / _below(beyond)
    return v, 1.0 if beyond < -_FAR else v * (v + beyond)


def _drawn(lead: float, margin: float) -> tuple[float, float]:
    """Return mean and lost variance of a lead within the margin, either way: v and w for a draw."""
    low, high = -margin - abs(lead), margin - abs(lead)
    if high < -_FAR:
        return math.copysign(high, -lead), 1.0
    within = _below(high) - _below(low)
    v = (_density(low) - _density(high)) / within
    w = v * v + (high * _density(high) - low * _density(low)) / within
    return v if lead >= 0 else -v, w


def _density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _below(x: float) -> float:
    """Return the standard normal distribution function, accurate in its lower tail."""
    return math.erfc(-x / math.sqrt(2)) / 2
