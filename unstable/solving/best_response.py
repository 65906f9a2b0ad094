"""Exact values of a policy in a game tree, and of the best responses to it.

Exploitability is NashConv / 2, where NashConv is the sum over seats of what a seat gains by
deviating to its best response (Lanctot et al. 2017, https://arxiv.org/abs/1711.00832).
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from unstable.solving.tree import Node, Tree
from unstable.types.information import move_information

Policy = Mapping[Any, Mapping[str, float]]
"""Probability of each legal action, by observation (`Shown`) or number of the information set.
The remainder to 1 is the illegal mass: the probability of answers that are not a legal action."""
_NEGLIGIBLE = 1e-12


@dataclass(frozen=True, slots=True)
class Assessment:
    """Values of a policy that plays all seats, in the game's payoff unit."""

    values: tuple[float, ...]  # value in self-play by seat
    best: tuple[float, ...]  # value of a best response by seat
    illegal_mass: float  # probability of an illegal action in self-play

    @property
    def exploitability(self) -> float:
        """Half the sum over seats of the gain from deviating alone to a best response.

        It is 0 at an equilibrium.
        """
        return sum(best - value for best, value in zip(self.best, self.values, strict=True)) / 2


def assess(tree: Tree, policy: Policy, *, forfeits: bool) -> Assessment:
    """Assess a policy exactly.

    If `forfeits`, illegal mass loses the tree's maximum payoff to the other seats in equal parts;
    otherwise it is spread over the legal actions. Best responses make only legal moves.
    """
    values = PolicyValues(tree, policy, forfeits)
    best = (BestResponse(values, seat).value() for seat in range(tree.seats))
    return Assessment(values.of(tree.root), tuple(best), values.illegal_mass(tree.root))


def table_at(policy: Policy, node: Node) -> Mapping[str, float]:
    """Return a policy's action probabilities at a position with a seat to move."""
    found = policy.get(node.information_set)
    return policy[node.key] if found is None else found


class PolicyValues:
    """Values of each position to each seat, if the policy plays all seats."""

    def __init__(self, tree: Tree, policy: Policy, forfeits: bool) -> None:
        self.tree = tree
        self._policy, self._forfeits = policy, forfeits
        self._values: dict[int, tuple[float, ...]] = {}
        self._illegal: dict[int, float] = {}
        self._probabilities: dict[int, tuple[tuple[float, ...], float]] = {}

    def probabilities(self, node: Node) -> tuple[tuple[float, ...], float]:
        """Return the probability of each child, and the probability of a forfeit."""
        if node.probabilities:
            return node.probabilities, 0.0
        if id(node) not in self._probabilities:
            given, illegal = self._given(node)
            if not self._forfeits:
                named, even = 1 - illegal, 1 / len(given)
                given = tuple(p / named if named > _NEGLIGIBLE else even for p in given)
            self._probabilities[id(node)] = given, illegal if self._forfeits else 0.0
        return self._probabilities[id(node)]

    def _given(self, node: Node) -> tuple[tuple[float, ...], float]:
        """Return the policy's probabilities of the legal actions, and its illegal mass."""
        table = table_at(self._policy, node)
        given = tuple(table.get(action, 0.0) for action in node.actions)
        return given, max(0.0, 1 - sum(given))

    def of(self, node: Node) -> tuple[float, ...]:
        """Return the expected payoffs at a position, by seat."""
        if not node.children:
            return node.payoffs
        if id(node) not in self._values:
            probabilities, lost = self.probabilities(node)
            total = [lost * payoff for payoff in self.tree.forfeit(node.seat)]
            for p, child in zip(probabilities, node.children, strict=True):
                for seat, value in enumerate(self.of(child)):
                    total[seat] += p * value
            self._values[id(node)] = tuple(total)
        return self._values[id(node)]

    def illegal_mass(self, node: Node) -> float:
        """Return the probability that play from a position reaches an illegal action."""
        if not node.children:
            return 0.0
        if id(node) not in self._illegal:
            given, illegal = (node.probabilities, 0.0) if node.probabilities else self._given(node)
            pairs = zip(given, node.children, strict=True)
            self._illegal[id(node)] = illegal + sum(p * self.illegal_mass(c) for p, c in pairs)
        return self._illegal[id(node)]


def information_of(tree: Tree, policy: Policy) -> float:
    """Return the information in the moves of self-play (`move_information`).

    Illegal mass is spread over the legal actions.
    """
    values = PolicyValues(tree, policy, forfeits=False)
    reach = {id(tree.root): 1.0}
    played = {node.key: np.zeros(len(node.actions)) for node in tree.decisions}
    for node in tree.parents_first():
        probabilities = values.probabilities(node)[0] if node.children else ()
        if node.actions:
            played[node.key] += reach[id(node)] * np.array(probabilities)
        for p, child in zip(probabilities, node.children, strict=True):
            reach[id(child)] = reach.get(id(child), 0.0) + p * reach[id(node)]
    sizes = [len(node.actions) for node in tree.decisions]
    named = [action for node in tree.decisions for action in node.actions]
    return move_information(
        np.concatenate([*played.values()]),
        owners_M=np.repeat(np.arange(len(sizes)), sizes),
        moves_M=np.unique(named, return_inverse=True)[1],
    )


class BestResponse:
    """Best response of a seat to a policy in the other seats, by information set."""

    def __init__(self, policy_values: PolicyValues, seat: int) -> None:
        self.seat, self._policy_values = seat, policy_values
        self._sets: dict[int, list[tuple[Node, float]]] = defaultdict(list)
        self._choices: dict[int, int] = {}
        self._values: dict[int, float] = {}
        self._seen: set[int] = set()
        self._reach(policy_values.tree.root, 1.0)

    def value(self) -> float:
        """Return the expected payoff of the best response."""
        return self._of(self._policy_values.tree.root)

    def _reach(self, node: Node, reach: float) -> None:
        """Collect each information set's positions, with the others' probability to reach them.

        With perfect information, a set is one position (numbered -1) and needs no probabilities.
        """
        if id(node) in self._seen:
            return
        if node.information_set < 0 and node.seat >= 0:
            self._seen.add(id(node))
        if not node.children:
            return
        if node.seat == self.seat:
            self._sets[node.information_set].append((node, reach))
            probabilities: tuple[float, ...] = (1.0,) * len(node.children)
        else:
            probabilities, _ = self._policy_values.probabilities(node)
        for p, child in zip(probabilities, node.children, strict=True):
            self._reach(child, reach * p)

    def _of(self, node: Node) -> float:
        if not node.children:
            return node.payoffs[self.seat]
        if id(node) not in self._values:
            self._values[id(node)] = self._compute(node)
        return self._values[id(node)]

    def _compute(self, node: Node) -> float:
        if node.seat == self.seat:
            return self._of(node.children[self.choice(node)])
        probabilities, lost = self._policy_values.probabilities(node)
        won = lost * self._policy_values.tree.forfeit(node.seat)[self.seat]
        return won + sum(
            p * self._of(child) for p, child in zip(probabilities, node.children, strict=True)
        )

    def choice(self, node: Node) -> int:
        """Return the index of the action that is best over all positions of the node's set."""
        key = node.information_set if node.information_set >= 0 else -id(node)
        if key not in self._choices:
            held = self._sets[node.information_set] if node.information_set >= 0 else [(node, 1.0)]
            action_values = [
                sum(reach * self._of(each.children[action]) for each, reach in held)
                for action in range(len(node.children))
            ]
            self._choices[key] = action_values.index(max(action_values))
        return self._choices[key]
