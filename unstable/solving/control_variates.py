"""Control variates: mean payoffs in which the luck of known draws is subtracted.

AIVAT (Burch et al. 2018, https://arxiv.org/abs/1612.06915): at each draw whose probabilities are
known, chance or a player's move, the value of the drawn outcome minus the expected value has the
mean 0 with any values. Subtracting it keeps the mean and, if the values are good, removes
variance. Values are fixed before the games are played, since values chosen afterwards could select
a result (Kim and Sandholm 2026, https://arxiv.org/abs/2605.14261).
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, NamedTuple, TypeVar

from unstable.types.intervals import Interval, mean, student_interval

State = TypeVar("State")
StateValue = Callable[[State], Sequence[float]]
"""Expected payoff of each seat in a whole state, such as a tree's node or the text that a state
critic reads; at a game's end, the payoffs."""
SIGNIFICANT = 2.0
"""Least t-value of the held-out correlation at which control variates are used."""
FEWEST_HELD_OUT = 8
"""Least number of held-out deals that a coefficient is fitted to."""


class Draw(NamedTuple, Generic[State]):
    """A draw of chance or of a player, with the exact probability of each outcome.

    Outcomes that are not distinguished, such as all illegal answers, are one outcome with any fixed
    state as its successor.
    """

    probabilities: Sequence[float]
    successors: Sequence[State]  # state after each outcome
    taken: int  # index of the drawn outcome


def luck(draws: Iterable[Draw[State]], value: StateValue[State], seats: Sequence[int]) -> float:
    """Return the luck in a game's draws, by the mean value of `seats`; its expectation is 0."""
    total = 0.0
    for draw in draws:
        worth = [mean(values[seat] for seat in seats) for values in map(value, draw.successors)]
        expected = math.fsum(p * v for p, v in zip(draw.probabilities, worth, strict=True))
        total += worth[draw.taken] - expected
    return total


def coefficient(values_D: Sequence[float], lucks_D: Sequence[float]) -> float:
    """Return the factor of luck that minimizes the variance of values [D] minus luck [D].

    Returns 0, no correction, if luck does not explain the values significantly: then it would add
    noise, as values of positions that are mostly errors do.
    """
    count, centre = len(values_D), mean(values_D)
    spread = math.fsum(each * each for each in lucks_D)
    if count < FEWEST_HELD_OUT or not spread:
        return 0.0
    pairs = [*zip(values_D, lucks_D, strict=True)]
    factor = math.fsum((value - centre) * each for value, each in pairs) / spread
    left = math.fsum((value - centre - factor * each) ** 2 for value, each in pairs) / (count - 2)
    return factor if factor > SIGNIFICANT * math.sqrt(left / spread) else 0.0


class Corrected(NamedTuple):
    """A mean whose luck is subtracted.

    Corrected(0.02, Interval(0.02, -0.01, 0.05), (0.9, 1.1), 6.2)
    """

    mean: float
    interval: Interval | None  # None: too few values, or all equal
    coefficients: tuple[float, float]  # of each half, fitted to the other; 0: not used
    factor: float
    """Ratio of variances, plain over corrected: one game is worth this many plain ones."""


def corrected(
    values_D: Sequence[float], lucks_D: Sequence[float], distinct: int | None = None
) -> Corrected:
    """Return the mean of values [D] per deal, corrected by the luck [D] of their draws.

    Each half of the deals uses the coefficient of the other half, so that no game's correction
    depends on its own result: the mean stays unbiased and the interval valid. At most `distinct`
    deals count as independent.
    """
    found_D, factors = [0.0] * len(values_D), list[float]()
    for own in (slice(0, None, 2), slice(1, None, 2)):
        other = slice(1 - own.start, None, 2)
        factors.append(coefficient(values_D[other], lucks_D[other]))
        pairs = zip(values_D[own], lucks_D[own], strict=True)
        found_D[own] = [value - factors[-1] * each for value, each in pairs]
    count = min(distinct or len(found_D), len(found_D))
    before, after = _squares(values_D), _squares(found_D)
    factor = before / after if after > 0 else math.inf if before > 0 else 1.0
    interval = student_interval(found_D, count)
    return Corrected(mean(found_D), interval, (factors[0], factors[1]), factor)


def _squares(values: Sequence[float]) -> float:
    centre = mean(values)
    return math.fsum((value - centre) ** 2 for value in values)
