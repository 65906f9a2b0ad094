"""Fixed points of regularized self-play, by mirror descent on a game's tree.

With a KL to a reference that never moves, or with an entropy bonus, self-play settles where each
decision's policy is proportional to

    reference(a) exp(Q(a) / weight),

with Q from self-play itself. That is not an equilibrium: its exploitability is a floor of such a
run. The steps are magnetic mirror descent's: Sokota et al., https://arxiv.org/abs/2206.05825.
"""

import numpy as np
from numpy.typing import NDArray

from unstable.solving.best_response import Policy, assess
from unstable.solving.tree import Tree

Floats = NDArray[np.float64]
_RATE, _STEPS, _SETTLED = 0.5, 2000, 1e-3
_NEVER = 1e-300  # least reach of a position, so that no mean divides by 0


def floor_of(tree: Tree, weight: float, scale: float) -> float | None:
    """Return the exploitability of `fixed_point` in the game's payoff unit; None if not found."""
    policy = fixed_point(tree, weight, scale)
    return None if policy is None else assess(tree, policy, forfeits=False).exploitability


def fixed_point(tree: Tree, weight: float, scale: float) -> Policy | None:
    """Return the policy where self-play settles, if regularized towards uniform play.

    `weight` is the weight of the KL to uniform play, or of the entropy, in outcome (payoff over
    `scale`) per nat of a move. Equal observations share one policy, as equal prompts do; their Q is
    the mean over positions, weighted by the probability of reaching them. Any number of seats. None
    if the steps, which are optimistic (their Q is extrapolated), do not settle.
    """
    moves = _Moves(tree)
    uniform_M = logs_M = moves.log_softmax(np.zeros(moves.count))
    before_M = moves.values(np.exp(logs_M)) / scale
    for _ in range(_STEPS):
        values_M = moves.values(np.exp(logs_M)) / scale
        aim_M = 2 * values_M - before_M + weight * uniform_M
        next_M = moves.log_softmax((logs_M + _RATE * aim_M) / (1 + _RATE * weight))
        change = np.abs(np.exp(next_M) - np.exp(logs_M)).max()
        logs_M, before_M = next_M, values_M
        if change < _SETTLED * _RATE * weight:
            return moves.policy(np.exp(logs_M))
    return None


class _Moves:
    """The moves [M] of a tree, one per observation and legal action, on its edges [E]."""

    def __init__(self, tree: Tree) -> None:
        nodes = tree.parents_first()
        depths = dict.fromkeys(map(id, nodes), 0)
        for node in nodes:
            for child in node.children:
                depths[id(child)] = max(depths[id(child)], depths[id(node)] + 1)
        nodes.sort(key=lambda node: depths[id(node)])
        numbers = {id(node): number for number, node in enumerate(nodes)}
        sizes = [len(node.actions) for node in tree.decisions]
        self.decisions, self.count = tree.decisions, sum(sizes)
        self._starts = np.cumsum([0, *sizes[:-1]])
        self._decisions_M = np.repeat(np.arange(len(sizes)), sizes)
        starts = {
            node.key: int(start) for node, start in zip(tree.decisions, self._starts, strict=True)
        }
        self._payoffs = np.array([node.payoffs or (0.0,) * tree.seats for node in nodes])
        edges = [
            (
                *(numbers[id(node)], numbers[id(child)], node.seat, depths[id(node)]),
                starts[node.key] + place if node.seat >= 0 else -1,
            )
            for node in nodes
            for place, child in enumerate(node.children)
        ]
        parents_E, children_E, seats_E, depths_E, moves_E = np.array(edges).T
        self._chance_E = np.array([p for node in nodes for p in node.probabilities])
        ends = np.flatnonzero(np.diff(depths_E)) + 1
        self._levels = [*map(slice, [0, *ends], [*ends, len(edges)])]
        self._parents_E, self._children_E, self._moves_E = parents_E, children_E, moves_E
        self._own_E = moves_E >= 0
        self._seats_E = seats_E[self._own_E]

    def log_softmax(self, logits_M: Floats) -> Floats:
        """Return the log-probabilities of each decision's moves."""
        shifted_M = logits_M - np.maximum.reduceat(logits_M, self._starts)[self._decisions_M]
        totals = np.add.reduceat(np.exp(shifted_M), self._starts)
        return np.asarray(shifted_M - np.log(totals)[self._decisions_M])

    def values(self, policy_M: Floats) -> Floats:
        """Return Q of each move to the seat that makes it, if the policy plays all seats."""
        shares_E = np.empty(len(self._moves_E))
        shares_E[self._own_E] = policy_M[self._moves_E[self._own_E]]
        shares_E[~self._own_E] = self._chance_E
        reach, worth = np.zeros(len(self._payoffs)), self._payoffs.copy()
        reach[0] = 1.0
        for level in self._levels:
            parents_E, children_E = self._parents_E[level], self._children_E[level]
            np.add.at(reach, children_E, reach[parents_E] * shares_E[level])
        for level in reversed(self._levels):
            parents_E, children_E = self._parents_E[level], self._children_E[level]
            np.add.at(worth, parents_E, worth[children_E] * shares_E[level, None])
        reach_E = np.maximum(reach[self._parents_E[self._own_E]], _NEVER)
        worth_E = worth[self._children_E[self._own_E], self._seats_E]
        moves_E = self._moves_E[self._own_E]
        totals_M = np.bincount(moves_E, reach_E * worth_E, self.count)
        return np.asarray(totals_M / np.bincount(moves_E, reach_E, self.count))

    def policy(self, policy_M: Floats) -> Policy:
        """Return the probabilities of all moves as a policy."""
        rows = np.split(policy_M, self._starts[1:])
        return {
            node.key: dict(zip(node.actions, row.tolist(), strict=True))
            for node, row in zip(self.decisions, rows, strict=True)
        }
