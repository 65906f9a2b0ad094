"""What each move of a policy is truly worth against itself, in a game that is solved exactly."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import mul
from typing import NamedTuple

from unstable.solving.best_response import Policy, PolicyValues
from unstable.solving.tree import Node, Shown, Tree


@dataclass(frozen=True, slots=True)
class Credit:
    """A decision, in pay-offs of the seat that moves: what it may expect when it is shown it."""

    reach: float  # how often a game comes to it, on average
    value: float  # V, before it moves
    actions: tuple[float, ...]  # Q of each legal action

    @property
    def advantages(self) -> tuple[float, ...]:
        """Q - V of each legal action."""
        return tuple(each - self.value for each in self.actions)


class Worth(NamedTuple):
    """What a prompt is worth to its seat, and what each legal answer to it is, in pay-offs."""

    value: float
    answers: dict[tuple[int, ...], float]  # Q, by token ids


Credits = dict[tuple[int, ...], Worth]
"""By prompt ids, those that play comes to."""


def credit(tree: Tree, policy: Policy, *, forfeits: bool) -> dict[Shown, Credit]:
    """Credit by what a seat is shown, of all that the policy in every seat ever comes to.

    The seat does not see which of several positions it is at: their values count by how often the
    policy comes to each. Illegal mass as in `best_response.assess`: where it forfeits it is in V.
    """
    values = PolicyValues(tree, policy, forfeits)
    positions: dict[Shown, list[Credit]] = defaultdict(list)
    for node, reach in reached(values):
        if node.seat >= 0 and node.children and reach:
            value, *actions = (values.of(each)[node.seat] for each in (node, *node.children))
            positions[node.key].append(Credit(reach, value, tuple(actions)))
    return {shown: joined(found) for shown, found in positions.items()}


def joined(parts: Sequence[Credit]) -> Credit:
    """Of positions with the same actions that the seat cannot tell apart."""
    reach = sum(each.reach for each in parts)
    value = sum(each.reach * each.value for each in parts) / reach
    rows = zip(*(each.actions for each in parts), strict=True)
    shares = [each.reach / reach for each in parts]
    actions = (sum(map(mul, shares, row)) for row in rows)
    return Credit(reach, value, tuple(actions))


def reached(values: PolicyValues) -> Iterator[tuple[Node, float]]:
    """Each position of the tree, after all that lead to it, with how often a game comes to it."""
    reaches: dict[int, float] = defaultdict(float)
    reaches[id(values.tree.root)] = 1.0
    for node in values.tree.parents_first():
        yield node, reaches[id(node)]
        if node.children:
            probabilities, _ = values.probabilities(node)
            for p, child in zip(probabilities, node.children, strict=True):
                reaches[id(child)] += reaches[id(node)] * p
