"""Means with 95 % intervals: of scores, which have a range, and of pay-offs, which have none."""

import math
import statistics
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import NamedTuple

Z = 1.959964  # of a normal distribution's 95 %


class Interval(NamedTuple):
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def mean(values: Iterable[float]) -> float:
    """The mean; 0 of nothing."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


def mean_interval(
    values: Sequence[float],
    low: float,
    high: float,
    count: int | None = None,
    z: float = Z,
) -> Interval:
    """Mean of one value at least, all between `low` and `high`, and its 95 % interval.

    `count` is how many of the values are independent, by default all; `z` is of the normal
    distribution what the interval covers, by default 95 %.

    Wilson's interval of a share, with the values' own variance in place of a coin's: it never
    leaves the range, knows that a draw is nearer to the mean than a win, and is a share's where all
    values are ends of the range. The variance is seen as if one more value were at an end, so that
    few values of one kind, such as sixteen draws, do not seem certain. Its coverage is shown by
    tests/league/test_evaluation.py.
    """
    count, width = count or len(values), high - low
    shares = [(value - low) / width for value in values]
    inner = mean(share * (1 - share) for share in shares) * count / (count + 1)
    centre = mean(shares)
    below, above = _interval(centre, count, inner, z)
    return Interval(low + width * centre, low + width * below, low + width * above)


def student_interval(
    values: Sequence[float], count: int | None = None, least: int = 4, z: float = Z
) -> Interval | None:
    """Mean of values that have no range, and its interval, by default of 95 %.

    Student's (1908, doi:10.2307/2331554). `count` is how many of the values are independent, by
    default all; `z` says what the interval covers, as for a normal distribution. None for fewer
    than `least`, and where all are alike: such values do not say how far others may be.
    """
    count, centre = count or len(values), mean(values)
    variance = mean((value - centre) ** 2 for value in values)
    if count < least or not variance:
        return None
    half = _student(count - 1, z) * math.sqrt(variance / (count - 1))
    return Interval(centre, centre - half, centre + half)


def difference_interval(first: Interval, second: Interval) -> Interval:
    """The second mean less the first, of values that are not paired, and its 95 % interval.

    Newcombe's (1998, doi:10.1002/(SICI)1097-0258(19980430)17:8<873::AID-SIM779>3.0.CO;2-I), from
    the intervals of both.
    """
    difference = second.mean - first.mean
    below = math.hypot(second.mean - second.low, first.high - first.mean)
    above = math.hypot(second.high - second.mean, first.mean - first.low)
    return Interval(difference, difference - below, difference + above)


def _student(freedom: int, z: float = Z) -> float:
    """Quantile of Student's distribution where `z` is that of the normal one, to 1 %.

    Of one and two degrees in closed form, else Abramowitz and Stegun, 26.7.5.
    """
    inside = math.erf(z / math.sqrt(2))
    if freedom == 1:
        return math.tan(math.pi * inside / 2)
    if freedom == 2:
        return inside * math.sqrt(2 / (1 - inside**2))
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


def z_of_each(comparisons: int) -> float:
    """The z of each of several comparisons with which all of them hold in 95 % (Bonferroni)."""
    return NormalDist().inv_cdf(1 - 0.025 / max(1, comparisons))


def wilson_interval(share: float, count: float, z: float = Z) -> tuple[float, float]:
    """95 % interval of a share seen in `count` games (Wilson, 1927, doi:10.2307/2276774)."""
    return _interval(share, count, 0.0, z)


def _interval(share: float, count: float, inner: float, z: float = Z) -> tuple[float, float]:
    """Means m in [0, 1] with (share - m)^2 <= z^2 (m (1 - m) - inner) / count.

    `inner` is the mean of y (1 - y) over values y; their variance is m (1 - m) less it.
    """
    a, b = count + z * z, count * share + z * z / 2
    half = math.sqrt(max(0.0, b * b - a * (count * share * share + z * z * inner)))
    return max(0.0, (b - half) / a), min(1.0, (b + half) / a)


def correlation(first: Sequence[float], second: Sequence[float]) -> Interval | None:
    """Pearson's correlation of pairs, with its interval by Fisher's transformation (1921).

    None for fewer than four pairs, and where all values of one kind are alike.

    >>> correlation([0.0, 1.0, 2.0, 3.0], [1.0, 1.0, 1.0, 1.0]) is None
    True
    """
    count = len(first)
    if count < 4:
        return None
    try:
        found = max(-1.0, min(1.0, statistics.correlation(first, second)))
    except statistics.StatisticsError:
        return None
    if abs(found) > 1 - 1e-12:
        return Interval(found, found, found)
    half = Z / math.sqrt(count - 3)
    return Interval(found, *(math.tanh(math.atanh(found) + by) for by in (-half, half)))
