"""What the pay-offs of players against each other say: who is best, where no ranking is."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unstable.types.tallies import Tally

Matrix = NDArray[np.float64]
MUTATION = 0.01
"""Of alpha-rank: how likely the worse of two takes the population over."""
_MOST_CYCLES = 10
_DRAWS = 200


class NashAverage(NamedTuple):
    """A mixture of players, by their places, and what each player wins against it."""

    mixture: list[float]
    worth: list[float]


def nash_average(payoffs: Matrix, coldest: float = 1e-9) -> NashAverage:
    """Nash averaging (Balduzzi et al., 2018, arXiv:1806.02643) of an antisymmetric matrix.

    The mixture is the equilibrium of maximal entropy, so that copies of a player change nothing. It
    is the limit of the equilibria p = softmax(payoffs p / t) as t falls to 0, here to `coldest`,
    each of which is unique and found by Newton's method from the one before.
    """
    count = len(payoffs)
    scale = max(float(np.abs(payoffs).max(initial=0.0)), 1e-300)
    game = (payoffs - payoffs.T) / (2 * scale)
    logs, heat = np.full(count, -math.log(count)), 1.0
    while heat > coldest:
        heat /= 1.5
        logs = _equilibrium(game, logs, heat)
    mixture = np.exp(logs)
    mixture /= mixture.sum()
    worth = game @ mixture * scale
    return NashAverage(mixture.tolist(), worth.tolist())


def _equilibrium(game: Matrix, logs: Matrix, heat: float) -> Matrix:
    """The logarithms u of p = softmax(game p / heat), from a guess: game e^u / heat - u is flat."""
    count = len(game)
    system = np.zeros((count + 1, count + 1))
    system[:count, count] = -1.0  # the constant that normalises
    constant = 0.0
    for _ in range(60):
        mixture = np.exp(logs)
        system[:count, :count] = game * mixture / heat - np.eye(count)
        system[count, :count] = mixture
        residual = np.append(game @ mixture / heat - logs - constant, mixture.sum() - 1)
        step = np.linalg.solve(system, -residual)
        largest = float(np.abs(step[:count] * np.maximum(mixture, 1e-12)).max())
        share = min(1.0, 1 / max(float(step[:count].max(initial=0.0)), 1e-300))
        logs, constant = logs + share * step[:count], constant + share * float(step[count])
        if share == 1 and largest < 1e-13:
            break
    return np.asarray(np.clip(logs, -700.0, 1.0))


def nash_shares(payoffs: Matrix, errors: Matrix, seed: int) -> list[tuple[float, float]]:
    """95 % intervals of the Nash average's shares, where pay-offs have these standard errors.

    By 200 draws of the pay-offs from normal distributions: a mixture moves far by little.
    """
    chance = np.random.default_rng(seed % 2**63)  # which may be negative
    drawn = []
    for _ in range(_DRAWS):
        noise = np.triu(chance.standard_normal(payoffs.shape) * errors, 1)
        drawn.append(nash_average(payoffs + noise - noise.T, coldest=1e-4).mixture)
    low, high = np.quantile(np.array(drawn), (0.025, 0.975), axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def alpha_rank(payoffs: Matrix) -> list[float]:
    """Alpha-rank (Omidshafiei et al., 2019, arXiv:1903.01373) of one population, at infinite alpha.

    `payoffs` are the row's player's. The share of time that the population, in which one player at
    a time is taken over by a better one, consists of each.
    """
    edge = payoffs.T - payoffs  # of the column, that would take over, against the row
    rates = np.where(edge > 0, 1 - MUTATION, np.where(edge < 0, MUTATION, 0.5))
    np.fill_diagonal(rates, 0.0)
    flow = rates - np.diag(rates.sum(axis=1))
    system = np.vstack([flow.T, np.ones(len(flow))])  # what flows in flows out, and all add up to 1
    shares, *_ = np.linalg.lstsq(system, np.append(np.zeros(len(flow)), 1.0), rcond=None)
    return [float(share) for share in shares]


def cycles(tallies: Mapping[tuple[str, str], Tally]) -> list[list[str]]:
    """Players each of whom beats the next, and the last the first: no ranking can be right there.

    Only what games support: a player beats another where the interval of the pair's score is above
    a half, all pairs' intervals together holding with 95 %. Of each such edge a shortest cycle, the
    shortest first, at most ten that differ.
    """
    pairs = {pair for pair, tally in tallies.items() if pair[0] < pair[1] and tally.games}
    beats: dict[str, list[str]] = {}
    for one, other in sorted(pairs):
        score = tallies[one, other].score(among=len(pairs))
        if score.low > 0.5:
            beats.setdefault(one, []).append(other)
        elif score.high < 0.5:
            beats.setdefault(other, []).append(one)
    found: dict[tuple[str, ...], None] = {}
    for winner in sorted(beats):
        for loser in beats[winner]:
            if (way := _way(beats, loser, winner)) is not None:
                first = way.index(min(way))
                found[tuple(way[first:] + way[:first])] = None
    return [list(each) for each in sorted(found, key=lambda each: (len(each), each))][:_MOST_CYCLES]


def _way(beats: Mapping[str, Sequence[str]], start: str, end: str) -> list[str] | None:
    """A shortest row of players from `start` to `end`, each of whom beats the next."""
    ways, seen = [[start]], {start}
    for way in ways:
        if way[-1] == end:
            return way
        new = [loser for loser in beats.get(way[-1], ()) if loser not in seen]
        seen.update(new)
        ways += [[*way, loser] for loser in new]
    return None


class Correlation(NamedTuple):
    """Joint policy correlation of runs: mean pay-off beside a run's own partner and another's."""

    own: float
    others: float

    @property
    def loss(self) -> float | None:
        """The average proportional loss; None where partners of one run win nothing together."""
        return (self.own - self.others) / self.own if self.own > 0 else None


def joint_policy_correlation(together: Matrix) -> Correlation:
    """Of the matrix that Lanctot et al. (2017, arXiv:1711.00832, section 3.1) define.

    `together` [runs, runs] is the mean of what all seats win together where the first seat's player
    is of the row's run and the others' of the column's; two runs at least.
    """
    count = len(together)
    own = float(np.trace(together)) / count
    others = (float(together.sum()) - own * count) / (count * (count - 1))
    return Correlation(own, others)
