"""What players of a tournament won from each other, in the games' own units."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import stdev
from typing import NamedTuple

import numpy as np

from unstable.league.evaluation import side_payoff
from unstable.studies.tournament.metagame import Matrix
from unstable.types import GameResult
from unstable.types.intervals import Interval, Z, mean, student_interval
from unstable.types.tallies import Tally


class Payoff(NamedTuple):
    """A player's mean pay-off against another, and the same over the stakes.

    Payoff(0.25, Interval(0.25, 0.1, 0.4), 0.125, 0.04)
    """

    mean: float
    interval: Interval | None  # of the mean, if there is one
    share: float  # of the stakes
    error: float  # standard error of the share


def pair_payoffs(results: Sequence[GameResult]) -> dict[tuple[str, str], Payoff]:
    """Of each two players that met each other alone, both ways; none if a game has no pay-offs.

    A deal is one observation, the mean of its games from every side: they share the luck of the
    cards.
    """
    deals: dict[tuple[str, str], dict[tuple[str, int], list[tuple[float, float]]]] = {}
    for result in results:
        spec = result.spec
        held = defaultdict[str, list[float]](list)
        for side in spec.sides:
            payoff = side_payoff(result, side)
            if payoff is None:
                return {}
            held[spec.seats[side[0]].player.name].append(payoff)
        assert result.stakes is not None
        for one, other in [(one, other) for one in held for other in held if one != other]:
            found = deals.setdefault((one, other), {}).setdefault((spec.env, spec.seed), [])
            found.append((mean(held[one]), mean(held[one]) / result.stakes))
    return {pair: _payoff([*by_deal.values()]) for pair, by_deal in deals.items()}


def _payoff(deals: Sequence[Sequence[tuple[float, float]]]) -> Payoff:
    means = [mean(payoff for payoff, _ in games) for games in deals]
    shares = [mean(share for _, share in games) for games in deals]
    error = stdev(shares) / math.sqrt(len(shares)) if len(shares) > 1 else 1.0
    return Payoff(mean(means), student_interval(means), mean(shares), error)


def payoff_matrix(
    names: Sequence[str],
    tallies: Mapping[tuple[str, str], Tally],
    payoffs: Mapping[tuple[str, str], Payoff],
) -> tuple[Matrix, Matrix]:
    """What the row's player wins from the column's, from -1 to 1, and its standard errors.

    Pay-offs over stakes; where games are only won, drawn or lost, wins less losses, per game.
    """
    matrix, errors = np.zeros((2, len(names), len(names)))
    for row, one in enumerate(names):
        for column, other in enumerate(names):
            if (found := payoffs.get((one, other))) is not None:
                matrix[row, column], errors[row, column] = found.share, found.error
            elif (tally := tallies.get((one, other))) is not None:
                score = tally.score()
                matrix[row, column] = 2 * score.mean - 1
                errors[row, column] = (score.high - score.low) / Z
    return matrix, errors


def won_together(names: Sequence[str], results: Sequence[GameResult]) -> Matrix:
    """The mean sum of outcomes where the row's player is at the first side, the column's at others.

    Of a pair that has not met so it is 0.
    """
    totals = np.zeros((2, len(names), len(names)))
    place = {name: at for at, name in enumerate(names)}
    for result in results:
        first, *others = [result.spec.seats[side[0]].player.name for side in result.spec.sides]
        if len(set(others)) == 1 and first in place and others[0] in place:
            totals[:, place[first], place[others[0]]] += sum(result.outcomes), 1
    return np.asarray(totals[0] / np.maximum(totals[1], 1))
