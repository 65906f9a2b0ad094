"""Means with 95 % intervals: of scores, which have a range, and of payoffs, which have none."""

import math
import statistics
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import NamedTuple

Z = 1.959964  # normal quantile of a 95 % interval


class Interval(NamedTuple):
    """A mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def mean(values: Iterable[float]) -> float:
    """Return the mean of the values; 0 without values."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0


def mean_interval(
    values: Sequence[float],
    low: float,
    high: float,
    count: int | None = None,
    z: float = Z,
) -> Interval:
    """Return the mean of at least one value between `low` and `high`, with its 95 % interval.

    `count` is the number of independent values, by default all; `z` is the normal quantile of the
    interval's coverage, by default 95 %.

    This is Wilson's interval of a share with the values' own variance in place of a Bernoulli
    variance: the interval never leaves the range, accounts for draws being nearer to the mean than
    wins, and equals Wilson's if all values are ends of the range. The variance is computed as if
    one more value were at an end, so that few equal values, such as sixteen draws, do not seem
    certain. tests/league/test_evaluation.py verifies the coverage.
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
    """Return the mean of values without a range, and its interval, by default of 95 %.

    Student's interval (1908, doi:10.2307/2331554). `count` is the number of independent values, by
    default all; `z` is the normal quantile of the interval's coverage. Returns None if there are
    fewer than `least`, or if all are equal, since such values do not bound others.
    """
    count, centre = count or len(values), mean(values)
    variance = mean((value - centre) ** 2 for value in values)
    if count < least or not variance:
        return None
    half = _student(count - 1, z) * math.sqrt(variance / (count - 1))
    return Interval(centre, centre - half, centre + half)


def difference_interval(first: Interval, second: Interval) -> Interval:
    """Return the second mean minus the first, of unpaired values, with its 95 % interval.

    Newcombe's (1998, doi:10.1002/(SICI)1097-0258(19980430)17:8<873::AID-SIM779>3.0.CO;2-I), from
    the intervals of both.
    """
    difference = second.mean - first.mean
    below = math.hypot(second.mean - second.low, first.high - first.mean)
    above = math.hypot(second.high - second.mean, first.mean - first.low)
    return Interval(difference, difference - below, difference + above)


def _student(freedom: int, z: float = Z) -> float:
    """Return the quantile of Student's distribution for the normal quantile `z`, to 1 %.

    One and two degrees of freedom have a closed form; others use Abramowitz and Stegun, 26.7.5.
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
    """Return the z per comparison with which all intervals hold jointly in 95 % (Bonferroni)."""
    return NormalDist().inv_cdf(1 - 0.025 / max(1, comparisons))


def wilson_interval(share: float, count: float, z: float = Z) -> tuple[float, float]:
    """Return the 95 % interval of a share in `count` games (Wilson, 1927, doi:10.2307/2276774)."""
    return _interval(share, count, 0.0, z)


def _interval(share: float, count: float, inner: float, z: float = Z) -> tuple[float, float]:
    """Return the bounds of means m in [0, 1] with (share - m)^2 <= z^2 (m (1 - m) - inner) / count.

    `inner` is the mean of y (1 - y) over values y; their variance is m (1 - m) - `inner`.
    """
    a, b = count + z * z, count * share + z * z / 2
    half = math.sqrt(max(0.0, b * b - a * (count * share * share + z * z * inner)))
    return max(0.0, (b - half) / a), min(1.0, (b + half) / a)


def correlation(first: Sequence[float], second: Sequence[float]) -> Interval | None:
    """Return Pearson's correlation of pairs, with its interval by Fisher's transformation (1921).

    Returns None for fewer than four pairs, or if all values of one sequence are equal.

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
