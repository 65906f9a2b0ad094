"""Exact payoffs of a policy against each of several others in a small game, without play."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from unstable.solving.best_response import Policy, PolicyValues
from unstable.solving.tree import Node, Tree
from unstable.types import LeastWon

Floats = NDArray[np.float64]


def least_won(tree: Tree, own: Policy, pool: Mapping[int, Policy]) -> LeastWon:
    """Return what the policy wins from the member of the pool that it wins least from."""
    members = list(pool)
    ends = np.array([won_from(tree, own, [*pool.values()], forfeits=f) for f in (False, True)])
    low, high = ends.min(axis=0), ends.max(axis=0)
    least = int(low.argmin())
    return LeastWon(members[least], float(low[least]), float(high[least]), len(members))


def won_from(tree: Tree, own: Policy, others: Sequence[Policy], *, forfeits: bool) -> Floats:
    """Return a policy's expected payoff against each other policy, averaged over its seats.

    The opponent plays all other seats. `forfeits` treats illegal mass as `best_response.assess`.
    """
    policies = [PolicyValues(tree, each, forfeits) for each in (own, *others)]
    seats = range(tree.seats)
    won = [_Won(tree, policies[0], policies[1:], seat).at(tree.root) for seat in seats]
    return np.asarray(np.sum(won, axis=0) / tree.seats)


class _Won:
    """Expected payoffs of a policy in one seat at each position, against all others at once."""

    def __init__(
        self, tree: Tree, own: PolicyValues, others: Sequence[PolicyValues], seat: int
    ) -> None:
        self._own, self._others, self._seat = own, others, seat
        self._forfeits = [tree.forfeit(each)[seat] for each in range(tree.seats)]
        self._values: dict[int, Floats] = {}
        self._decided: dict[int, tuple[Floats, Floats]] = {}

    def at(self, node: Node) -> Floats:
        """Return the expected payoff at a position against each other policy."""
        if not node.children:
            return np.full(len(self._others), node.payoffs[self._seat])
        if id(node) not in self._values:
            probabilities, lost = self._decision(node)
            total = lost * self._forfeits[node.seat]
            for p, child in zip(probabilities, node.children, strict=True):
                total = total + p * self.at(child)
            self._values[id(node)] = total
        return self._values[id(node)]

    def _decision(self, node: Node) -> tuple[Floats, Floats]:
        """Return the probabilities of each child and of a forfeit, per other policy or for all."""
        if node.seat < 0:
            return np.array(node.probabilities), np.zeros(1)
        key = id(node) if node.information_set < 0 else -1 - node.information_set
        if key not in self._decided:
            asked = [self._own] if node.seat == self._seat else self._others
            given = [each.probabilities(node) for each in asked]
            probabilities = np.array([p for p, _ in given]).T
            self._decided[key] = probabilities, np.array([lost for _, lost in given])
        return self._decided[key]
