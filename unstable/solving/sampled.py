"""What a policy's samples can say of its exploitability: an interval that covers it.

A best response to sampled frequencies wins by their noise too, so that its value is too high on
average. One that is chosen by half of the samples and paid by the other half has too low a value:
the first bounds exploitability from above, the second from below.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul

import numpy as np

from unstable.solving.best_response import BestResponse, PolicyValues
from unstable.solving.tree import Node, Shown, Tree

_Z = 2.24  # for 1.96: what the errors leave out is of the second order, but so are few samples
_SPLITS = 2  # into halves, so that less depends on how they are drawn
_UNSEEN = 0.5  # added to each count for errors: what was never sampled may still be done

Groups = Mapping[Shown, int]
"""The number of the samples that stand for a seat's policy, by what it is shown there."""
Counts = Mapping[int, Sequence[int]]
"""How often each legal action was sampled, and last how often none of them, by that number."""


@dataclass(frozen=True, slots=True)
class _Traversal:
    """A game as it is walked through: from its root on, and back."""

    tree: Tree
    order: list[Node]  # each after those that lead to it
    groups: list[int]  # of the samples, for each of these; -1: nobody decides
    forfeits: bool


def sampled_bounds(
    tree: Tree, groups: Groups, counts: Counts, *, forfeits: bool
) -> tuple[float, float]:
    """A 95 % interval of the exploitability of the policy that was sampled, 0 at the least.

    What is no legal action `forfeits`, or is left out. Errors are those of the first order: the
    variance of each frequency, times how much the figure changes with it.
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
    """The samples in two halves, the second larger by one if their number is odd."""
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
    """A policy of sampled frequencies, and how far its values may be off."""

    def __init__(self, game: _Traversal, groups: Groups, counts: Counts) -> None:
        self._game, self._counts = game, counts
        policy = {}
        for node in game.tree.decisions:
            seen = counts[groups[node.key]]
            frequencies = (count / max(1, sum(seen)) for count in seen[:-1])
            policy[node.key] = dict(zip(node.actions, frequencies, strict=True))
        self._values = PolicyValues(game.tree, policy, game.forfeits)

    def responses(self) -> list[BestResponse]:
        """The best response of each seat to these frequencies."""
        return [BestResponse(self._values, seat) for seat in range(self._game.tree.seats)]

    def estimate(self, responses: Sequence[BestResponse]) -> tuple[float, float]:
        """Half of what the responses win more than the policy itself, and its standard error."""
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
        """What is won if each seat's pay-off counts so much, one seat playing the response.

        Adds to `slopes` how that grows with each probability.
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
                cost = self._values.forfeit(node.seat)
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
