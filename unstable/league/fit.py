"""Strengths fitted to all recorded games at once, with equal weight and independent of order.

A game is a sequence of choices: who ranks first, alone or tied, then who ranks first among the
rest. Of the remaining sides, the set S is chosen with a probability proportional to

    draws(env, sides left, |S|) * exp(mean over S of the player's strength and the side's advantage)

For two sides this is the model of Bradley and Terry (1952, doi:10.2307/2334029) without draws, of
Davidson (1970, doi:10.2307/2283595) with draws, and of Davidson and Beaver (1977,
doi:10.2307/2529467) with the advantage; for several sides without ties it is the Plackett-Luce
model. The whole is the Davidson-Luce model of Firth, Kosmidis and Turner (2019, arXiv:1909.07123).
Its log-likelihood is concave and the prior strictly so: there is one best fit, which Newton's
method finds, and intervals follow from the curvature there.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, combinations, product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from unstable.types import GameResult, PlayedGame
from unstable.types.intervals import Interval, Z, z_of_each

POINTS = 400 / math.log(10)
"""Elo points per unit of strength: 400 points are odds of 10 to 1 in games without draws."""
PRIOR = 16.0
"""Standard deviation of a strength before any game (2,779 points); keeps the undefeated finite.

It is wide, since a narrow prior pulls both ends of a long ladder to the middle: at 4, only half of
the intervals of 50 versions that each rise by 52 points contained the true strength.
"""
PRIOR_ADVANTAGE = 0.7
"""Standard deviation of a side's advantage before any game: +- 1, odds of 2.7, between two."""
PRIOR_DRAWS = 3.0
"""Standard deviation of log(`draws`) before any game; at 0, equals draw every third game."""
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


class Ranking(NamedTuple):
    """Final ranks of a game: Ranking("Nim-v0", ("main@3", "random"), (0, 1))"""

    env: str
    players: tuple[str, ...]  # by side, in the env's order
    ranks: tuple[int, ...]  # by side, 0 is best; equal ranks are a draw
    forfeit: bool = False


class Strength(NamedTuple):
    """Strength of a player in Elo points, with its 95 % interval."""

    player: str
    points: Interval
    games: int
    ahead: Interval  # the strongest's points less its own; simultaneous 95 % intervals


class SideAdvantage(NamedTuple):
    """Advantage of a side in an env over the mean of the env's sides, in points."""

    env: str
    side: int
    points: Interval


class RatingFit(NamedTuple):
    """Fitted values, strongest player first; `reference` has 0 points, the mean if it is None."""

    strengths: list[Strength]
    advantages: list[SideAdvantage]  # which games determine better than the prior
    draws: dict[str, float]  # by env, the share of draws between equals
    reference: str | None
    apart: list[list[str]]  # groups that no game connects; [] if there is one group


def ranking(result: GameResult | PlayedGame) -> Ranking | None:
    """Return a finished game as `fit` takes it; None if it has one side or an opening."""
    if result.spec.opening or len(result.spec.sides) < 2:
        return None
    ranked = [result.ranked_outcomes[side[0]] for side in result.spec.sides]
    order = sorted(set(ranked), reverse=True)
    return Ranking(
        env=result.spec.env,
        players=tuple(result.spec.seats[side[0]].player.name for side in result.spec.sides),
        ranks=tuple(order.index(each) for each in ranked),
        forfeit=result.forfeit is not None,
    )


def fit(games: Iterable[Ranking], *, forfeits: float = 1.0, anchor: str | None = None) -> RatingFit:
    """Fit the strengths of all players who met another; a forfeit has the weight `forfeits`.

    Points are relative to `anchor` if it is among these players, else to their mean.
    """
    shapes = defaultdict[_Shape, list[tuple[str, ...]]](list)
    for env, players, ranks, forfeit in games:
        if forfeits or not forfeit:
            shapes[env, ranks, forfeit].append(players)
    names = sorted({name for held in shapes.values() for name in chain(*held)})
    number = {name: place for place, name in enumerate(names)}
    played = [
        _Played(shape, *np.unique(rows, axis=0, return_counts=True))
        for shape in sorted(shapes)
        for rows in [np.array([[number[name] for name in held] for held in shapes[shape]])]
    ]
    model = _ChoiceModel(len(names), played, forfeits)
    theta, covariance = model.solve()
    met = _met(played, len(names))
    rated = np.flatnonzero(met.diagonal())
    reference = anchor if anchor in number and number[anchor] in rated else None
    zero = None if reference is None else int(np.flatnonzero(rated == number[reference])[0])
    theirs, among = theta[rated], covariance[np.ix_(rated, rated)]
    known = _relative(theirs, among, zero)
    first = int(theirs.argmax()) if len(rated) else None
    ahead = _relative(-theirs, among, first, z_of_each(len(rated) - 1))
    strengths = [
        Strength(names[place], points, int(met[place, place]), lead)
        for place, points, lead in zip(rated, known, ahead, strict=True)
    ]
    return RatingFit(
        strengths=sorted(strengths, key=lambda each: (-each.points.mean, each.player)),
        advantages=model.advantages(theta, covariance),
        draws=model.equal_draws(theta),
        reference=reference,
        apart=[[names[rated[place]] for place in part] for part in _parts(met[rated][:, rated])],
    )


_Shape = tuple[str, tuple[int, ...], bool]
"""Env, ranks by side, and whether the game was forfeited."""


class _Played(NamedTuple):
    """Games of one shape: player numbers by side, in distinct rows, and the count of each row."""

    shape: _Shape
    players: Integers  # [rows, sides]
    counts: Integers  # [rows]


class _EnvChoices(NamedTuple):
    """Choices among equally many sides of one env: one row per choice, with parameter indices."""

    places: Integers  # [rows, slots]
    features: Floats  # [sets, slots]: weight of a parameter in a set's utility
    chosen: Integers  # [rows]
    weights: Floats  # [rows]


class _ChoiceModel:
    """Choices of all games, and an index for each parameter: first strengths, then the others."""

    def __init__(self, players: int, played: Sequence[_Played], forfeits: float) -> None:
        self._precisions = [PRIOR**-2] * players
        self._sides: dict[tuple[str, int], int] = {}
        self._draws: dict[tuple[str, int, int], int] = {}
        stages = [(each, *stage) for each in played for stage in _stages(each.shape[1])]
        sizes = defaultdict[tuple[str, int], set[int]](set)
        for each, left, chosen in stages:
            sizes[each.shape[0], len(left)].add(len(chosen))
        self._choices = [
            self._lay_out(each, left, chosen, sorted(sizes[each.shape[0], len(left)]), forfeits)
            for each, left, chosen in stages
        ]

    def _lay_out(
        self,
        played: _Played,
        left: Sequence[int],
        chosen: Sequence[int],
        sizes: Sequence[int],
        forfeits: float,
    ) -> _EnvChoices:
        """Return one choice of all games of a shape, without ties of sizes that the env lacks."""
        (env, _, forfeit), places = played.shape, range(len(left))
        ties = [size for size in sizes if size > 1]
        sets = [each for size in [1, *ties] for each in combinations(places, size)]
        shares = [[(place in each) / len(each) for place in places] for each in sets]
        tied = [[len(each) == size for size in ties] for each in sets]
        sides = [self._place(self._sides, (env, side), PRIOR_ADVANTAGE) for side in left]
        draws = [self._place(self._draws, (env, len(left), n), PRIOR_DRAWS) for n in ties]
        shared = np.tile(np.array([*sides, *draws]), (len(played.counts), 1))
        return _EnvChoices(
            places=np.hstack([played.players[:, left], shared]),
            features=np.array([[*s, *s, *t] for s, t in zip(shares, tied, strict=True)]),
            chosen=np.full(len(shared), sets.index(tuple(left.index(side) for side in chosen))),
            weights=np.float64(forfeits if forfeit else 1.0) * played.counts.astype(np.float64),
        )

    def _place(self, table: dict[Any, int], key: object, prior: float) -> int:
        if key not in table:
            table[key] = len(self._precisions)
            self._precisions.append(prior**-2)
        return table[key]

    def solve(self) -> tuple[Floats, Floats]:
        """Return the parameters that maximize the posterior, and their covariance there."""
        theta = np.zeros(len(self._precisions))
        value, gradient, curvature = self._posterior(theta)
        while len(theta):
            step = np.linalg.solve(curvature, gradient)
            if gradient @ step < 1e-16 * (1 + abs(value)):
                break
            before, start = value, theta
            while (theta := start + step) is not None:
                value, gradient, curvature = self._posterior(theta)
                if value >= before - 1e-12 * abs(before):
                    break
                step = step / 2
        return theta, np.asarray(np.linalg.inv(curvature), dtype=np.float64)

    def _posterior(self, theta: Floats) -> tuple[float, Floats, Floats]:
        """Return the log posterior, its gradient and its negative Hessian."""
        count = len(theta)
        precisions = np.array(self._precisions)
        value = float(-(precisions * theta**2).sum() / 2)
        gradient, curvature = -precisions * theta, np.diag(precisions)
        for places, features, chosen, weights in self._choices:
            utilities = theta[places] @ features.T
            utilities -= utilities.max(axis=1, keepdims=True)
            chances = np.exp(utilities)
            totals = chances.sum(axis=1, keepdims=True)
            chances /= totals
            rows = np.arange(len(chosen))
            value += float(weights @ (utilities[rows, chosen] - np.log(totals[:, 0])))
            means = chances @ features
            slots = weights[:, None] * (features[chosen] - means)
            gradient += np.bincount(places.ravel(), slots.ravel(), count)
            products = features[:, :, None] * features[:, None, :]
            spread = np.tensordot(chances, products, 1)
            spread -= means[:, :, None] * means[:, None, :]
            spread *= weights[:, None, None]
            pairs = places[:, :, None] * count + places[:, None, :]
            flat = np.bincount(pairs.ravel(), spread.ravel(), count * count)
            curvature += flat.reshape(count, count)
        return value, gradient, curvature

    def advantages(self, theta: Floats, covariance: Floats) -> list[SideAdvantage]:
        """Return the advantages of all sides in envs whose games halve the prior's variance."""
        envs = defaultdict[str, list[int]](list)
        for (env, _), place in sorted(self._sides.items()):
            envs[env].append(place)
        found = []
        for env, places in envs.items():
            points = _relative(theta[places], covariance[np.ix_(places, places)], None)
            most = Z * POINTS * PRIOR_ADVANTAGE * math.sqrt((1 - 1 / len(places)) / 2)
            if all(each.high - each.mean < most for each in points):
                found += [SideAdvantage(env, side, each) for side, each in enumerate(points)]
        return found

    def equal_draws(self, theta: Floats) -> dict[str, float]:
        """Return the draw probability of equals on equal sides, by env, for envs of two sides."""
        found = {}
        for env in sorted({env for env, _ in self._sides}):
            if (env, 2) not in self._sides:
                place = self._draws.get((env, 2, 2))
                odds = 0.0 if place is None else math.exp(theta[place])
                found[env] = odds / (2 + odds)
        return found


def _stages(ranks: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the remaining sides and those ranked first among them, while there is a choice.

    >>> list(_stages((1, 0, 1)))
    [([0, 1, 2], [1]), ([0, 2], [0, 2])]
    """
    left = list(range(len(ranks)))
    while len(left) > 1:
        best = min(ranks[side] for side in left)
        chosen = [side for side in left if ranks[side] == best]
        yield left, chosen
        left = [side for side in left if ranks[side] != best]


def _relative(theta: Floats, covariance: Floats, zero: int | None, z: float = Z) -> list[Interval]:
    """Return intervals of parameters in points, relative to the one at `zero` or to their mean."""
    count = len(theta)
    base = np.full(count, 1 / max(count, 1)) if zero is None else np.eye(count)[zero]
    contrast = np.eye(count) - base
    variances = (contrast @ covariance @ contrast.T).diagonal()
    halves = z * POINTS * np.sqrt(np.maximum(0.0, variances))
    values = contrast @ theta * POINTS
    return [
        Interval(float(value), float(value - half), float(value + half))
        for value, half in zip(values, halves, strict=True)
    ]


def _met(played: Sequence[_Played], count: int) -> Integers:
    """Return the games of each pair, [count, count]; the diagonal has those with any opponent."""
    met = np.zeros(count * count)
    for _, players, counts in played:
        sides = range(players.shape[1])
        is_new = [(players[:, :side] != players[:, [side]]).all(axis=1) for side in sides]
        is_compared = np.sum(is_new, axis=0) > 1
        for one, other in product(sides, sides):
            rows = is_new[one] & is_new[other] & is_compared
            pairs = players[rows, one] * count + players[rows, other]
            met += np.bincount(pairs, counts[rows], count * count)
    return np.rint(met).astype(np.int64).reshape(count, count)


def _parts(met: Integers) -> list[list[int]]:
    """Return the groups of players that no game connects; [] if there is one group."""
    near = met > 0
    while (further := near @ near).sum() > near.sum():
        near = further
    firsts = near.argmax(axis=1) if len(near) else np.zeros(0, dtype=np.int64)
    parts = [np.flatnonzero(firsts == first).tolist() for first in sorted(set(firsts.tolist()))]
    return parts if len(parts) > 1 else []
