"""Analysis of players' payoffs against each other: the best players, and cycles."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from unstable.types.tallies import Tally

Matrix = NDArray[np.float64]
MUTATION = 0.01
"""Probability in alpha-rank that the worse of two players takes over the population."""
_MOST_CYCLES = 10
_DRAWS = 200


class NashAverage(NamedTuple):
    """A mixture of players, by index, and each player's payoff against it."""

    mixture: list[float]
    worth: list[float]


def nash_average(payoffs: Matrix, coldest: float = 1e-9) -> NashAverage:
    """Compute the Nash average (Balduzzi et al., 2018, arXiv:1806.02643) of antisymmetric payoffs.

    The mixture is the equilibrium of maximal entropy, so that copies of a player change nothing. It
    is the limit of the equilibria p = softmax(payoffs p / t) as t falls to 0, here to `coldest`;
    each is unique, and Newton's method finds it from the previous one.
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
    """Solve p = softmax(game p / heat) for u = log p, from a guess: game e^u / heat - u is flat."""
    count = len(game)
    system = np.zeros((count + 1, count + 1))
    system[:count, count] = -1.0  # the constant that normalizes
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
    """Return 95 % intervals of the Nash average's shares, given the payoffs' standard errors.

    Uses 200 draws of the payoffs from normal distributions: small changes move a mixture far.
    """
    chance = np.random.default_rng(seed % 2**63)  # seeds may be negative
    drawn = []
    for _ in range(_DRAWS):
        noise = np.triu(chance.standard_normal(payoffs.shape) * errors, 1)
        drawn.append(nash_average(payoffs + noise - noise.T, coldest=1e-4).mixture)
    low, high = np.quantile(np.array(drawn), (0.025, 0.975), axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def alpha_rank(payoffs: Matrix) -> list[float]:
    """Compute alpha-rank (Omidshafiei et al., 2019, arXiv:1903.01373) at infinite alpha.

    `payoffs` are the row's player's. The result is the share of time in which each player makes up
    a single population that better players take over, one at a time.
    """
    edge = payoffs.T - payoffs  # column's payoff minus row's
    rates = np.where(edge > 0, 1 - MUTATION, np.where(edge < 0, MUTATION, 0.5))
    np.fill_diagonal(rates, 0.0)
    flow = rates - np.diag(rates.sum(axis=1))
    system = np.vstack([flow.T, np.ones(len(flow))])  # inflow equals outflow; shares sum to 1
    shares, *_ = np.linalg.lstsq(system, np.append(np.zeros(len(flow)), 1.0), rcond=None)
    return [float(share) for share in shares]


def cycles(tallies: Mapping[tuple[str, str], Tally]) -> list[list[str]]:
    """Return cycles of players, each of which beats the next, so that no ranking can hold.

    A player beats another if the interval of the pair's score is above a half, with the intervals
    of all pairs holding jointly with 95 %. The result has a shortest cycle for each such edge, the
    shortest first, at most ten distinct ones.
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
    """Return a shortest path of players from `start` to `end`, each beating the next, or None."""
    ways, seen = [[start]], {start}
    for way in ways:
        if way[-1] == end:
            return way
        new = [loser for loser in beats.get(way[-1], ()) if loser not in seen]
        seen.update(new)
        ways += [[*way, loser] for loser in new]
    return None


class Correlation(NamedTuple):
    """Joint policy correlation of runs: mean payoff with partners of one run, and of others."""

    own: float
    others: float

    @property
    def loss(self) -> float | None:
        """Average proportional loss; None if partners of one run win nothing together."""
        return (self.own - self.others) / self.own if self.own > 0 else None


def joint_policy_correlation(together: Matrix) -> Correlation:
    """Compute joint policy correlation (Lanctot et al., 2017, arXiv:1711.00832, section 3.1).

    `together` [runs, runs] is the mean sum of all seats' outcomes, with the first seat's player
    from the row's run and the others from the column's; at least two runs.
    """
    count = len(together)
    own = float(np.trace(together)) / count
    others = (float(together.sum()) - own * count) / (count * (count - 1))
    return Correlation(own, others)
