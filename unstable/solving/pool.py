"""What a policy wins from each of some others in a small game, exactly: no game is played."""

from collections.abc import Mapping
from typing import NamedTuple

from unstable.solving.best_response import Policy, PolicyValues
from unstable.solving.tree import Tree


class LeastWon(NamedTuple):
    """The least that a policy wins from any of a pool, in the game's own pay-offs.

    LeastWon(member=4, low=-0.31, high=-0.27)
    """

    member: int
    low: float  # illegal mass forfeits, or is spread: what comes of the two
    high: float


def least_won(tree: Tree, own: Policy, pool: Mapping[int, Policy]) -> LeastWon:
    """Against the member of the pool that answers the policy best."""
    found = []
    for member, other in pool.items():
        ends = [won_from(tree, own, other, forfeits=each) for each in (False, True)]
        found.append(LeastWon(member, min(ends), max(ends)))
    return min(found, key=lambda each: each.low)


def won_from(tree: Tree, own: Policy, other: Policy, *, forfeits: bool) -> float:
    """What a policy wins a game, on average over its seat, with the other one in all other seats.

    Illegal mass as in `best_response.assess`.
    """
    won = (
        _SeatedValues(tree, own, seat, other, forfeits).of(tree.root)[seat]
        for seat in range(tree.seats)
    )
    return sum(won) / tree.seats


class _SeatedValues(PolicyValues):
    """Values with a policy of its own in one seat."""

    def __init__(self, tree: Tree, own: Policy, seat: int, other: Policy, forfeits: bool) -> None:
        super().__init__(tree, other, forfeits)
        self._own, self._seat = own, seat

    def policy_of(self, seat: int) -> Policy:
        return self._own if seat == self._seat else super().policy_of(seat)
