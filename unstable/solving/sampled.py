"""Confidence intervals for the exploitability of a policy that is known by samples.

A best response to sampled frequencies also exploits their noise, so its value is biased upward and
gives the upper bound. A response chosen on one half of the samples and evaluated on the other half
has a value that is biased downward, and gives the lower bound.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul

import numpy as np

from unstable.solving.best_response import BestResponse, PolicyValues
from unstable.solving.tree import Node, Shown, Tree

_Z = 2.24  # instead of 1.96: first-order standard errors are too small for few samples
_SPLITS = 2  # random splits into halves; their results are averaged
_UNSEEN = 0.5  # added to each count for errors: unsampled actions may have probability > 0

Groups = Mapping[Shown, int]
"""Group number of the samples that estimate the policy, by observation."""
Counts = Mapping[int, Sequence[int]]
"""Sample counts of the legal actions, then of illegal answers, by group number."""


@dataclass(frozen=True, slots=True)
class _Traversal:
    """A game's nodes in topological order, for passes forward and back."""

    tree: Tree
    order: list[Node]  # parents before children
    groups: list[int]  # group number per node of `order`; -1: no decision
    forfeits: bool


def sampled_bounds(
    tree: Tree, groups: Groups, counts: Counts, *, forfeits: bool
) -> tuple[float, float]:
    """Return a 95 % confidence interval for the exploitability of a sampled policy, at least 0.

    Illegal answers forfeit if `forfeits`, and are omitted otherwise. Standard errors are of first
    order: the variance of the frequencies, propagated by the gradient of the exploitability.
    """
    order = tree.parents_first()
    by_node = [-1 if each.observation is None else groups[each.key] for each in order]
    game = _Traversal(tree, order, by_node, forfeits)
    whole = _Sampled(game, groups, counts)
    found, error = whole.estimate(whole.responses())
    lows = []
    for split in range(_SPLITS):
        chosen_by, paid_by = _halves(counts, np.random.default_rng(split))
        responses = _Sampled(game, groups, chosen_by).responses()
        least, doubt = _Sampled(game, groups, paid_by).estimate(responses)
        lows.append(least - _Z * doubt)
    return max(0.0, sum(lows) / _SPLITS), max(0.0, found) + _Z * error


def _halves(counts: Counts, rng: np.random.Generator) -> tuple[Counts, Counts]:
    """Split the samples into random halves, the second larger by one if their number is odd."""
    first = {
        group: rng.multivariate_hypergeometric(each, sum(each) // 2).tolist()
        for group, each in counts.items()
    }
    second = {
        group: [both - one for both, one in zip(counts[group], first[group], strict=True)]
        for group in counts
    }
    return first, second


class _Sampled:
    """A policy of sampled frequencies, and the standard errors of its values."""

    def __init__(self, game: _Traversal, groups: Groups, counts: Counts) -> None:
        self._game, self._counts = game, counts
        policy = {}
        for node in game.tree.decisions:
            seen = counts[groups[node.key]]
            frequencies = (count / max(1, sum(seen)) for count in seen[:-1])
            policy[node.key] = dict(zip(node.actions, frequencies, strict=True))
        self._values = PolicyValues(game.tree, policy, game.forfeits)

    def responses(self) -> list[BestResponse]:
        """Return the best response of each seat to the sampled frequencies."""
        return [BestResponse(self._values, seat) for seat in range(self._game.tree.seats)]

    def estimate(self, responses: Sequence[BestResponse]) -> tuple[float, float]:
        """Return half of the responses' gain over the policy itself, and its standard error."""
        seats = self._game.tree.seats
        slopes = {group: [0.0] * len(counts) for group, counts in self._counts.items()}
        total = self._walk([-0.5] * seats, None, slopes)
        for response in responses:
            pays = [0.5 * (seat == response.seat) for seat in range(seats)]
            total += self._walk(pays, response, slopes)
        variance = sum(self._variance(group, each) for group, each in slopes.items())
        return total, max(0.0, variance) ** 0.5

    def _walk(
        self, pays: list[float], response: BestResponse | None, slopes: dict[int, list[float]]
    ) -> float:
        """Return the expected sum of payoffs weighted by `pays`, with one seat playing `response`.

        Adds the derivative with respect to each probability to `slopes`.
        """
        values: dict[int, float] = {}
        probabilities: dict[int, Sequence[float]] = {}
        lost: dict[int, float] = {}
        order = self._game.order
        for node in reversed(order):
            name = id(node)
            if not node.children:
                values[name] = sum(map(mul, pays, node.payoffs))
            elif response is not None and node.seat == response.seat:
                values[name] = values[id(node.children[response.choice(node)])]
            else:
                probabilities[name], forfeit = self._values.probabilities(node)
                cost = self._values.tree.forfeit(node.seat)
                lost[name] = 0.0 if node.probabilities else sum(map(mul, pays, cost))
                gains = (values[id(child)] for child in node.children)
                values[name] = forfeit * lost[name] + sum(map(mul, probabilities[name], gains))
        reach = dict.fromkeys(values, 0.0)
        reach[id(order[0])] = 1.0
        for node, group in zip(order, self._game.groups, strict=True):
            here = reach[id(node)]
            if not node.children or not here:
                continue
            if id(node) not in probabilities:
                assert response is not None
                reach[id(node.children[response.choice(node)])] += here
                continue
            for p, child in zip(probabilities[id(node)], node.children, strict=True):
                reach[id(child)] += here * p
            if group >= 0:
                slope = slopes[group]
                for action, child in enumerate(node.children):
                    slope[action] += here * values[id(child)]
                slope[-1] += here * lost[id(node)]
        return values[id(order[0])]

    def _variance(self, group: int, slopes: list[float]) -> float:
        seen, slope = np.array(self._counts[group], dtype=float), np.array(slopes)
        if not self._game.forfeits:
            seen, slope = seen[:-1], slope[:-1]
        held = (seen + _UNSEEN) / (seen + _UNSEEN).sum()
        return float(held @ slope**2 - (held @ slope) ** 2) / max(1.0, seen.sum())
