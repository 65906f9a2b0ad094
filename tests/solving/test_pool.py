"""Exact winnings of a policy against each of several others."""

import pytest

from tests.helpers.rows import every_row
from tests.helpers.trees import drawn, kuhn
from unstable.solving.best_response import Policy, assess
from unstable.solving.pool import least_won, won_from
from unstable.solving.tree import Node, Tree


def always(tree: Tree, *words: str) -> Policy:
    """The first of these actions that is legal."""
    chosen = {n.key: next(w for w in words if w in n.actions) for n in tree.decisions}
    return {node.key: {chosen[node.key]: 1.0} for node in tree.decisions}


def test_bettor_wins_ante_of_folder() -> None:
    """A hand's ante is 1; callers show their cards, which are as good as each other's."""
    tree = kuhn()
    bold, meek = always(tree, "[bet]", "[call]"), always(tree, "[check]", "[fold]")
    assert won_from(tree, bold, [meek, bold], forfeits=True) == pytest.approx([1.0, 0.0])
    assert won_from(tree, meek, [bold, meek], forfeits=True) == pytest.approx([-1.0, 0.0])
    pool = {3: meek, 5: bold, 8: bold}
    assert least_won(tree, bold, pool) == pytest.approx((5, 0.0, 0.0, 3))
    assert least_won(tree, meek, pool) == pytest.approx((5, -1.0, -1.0, 3))


def plainly(tree: Tree, own: Policy, other: Policy, forfeits: bool) -> float:
    """Compute `won_from` path by path: the sum of each end's payoff times its probability."""

    def below(node: Node, seat: int) -> float:
        if not node.children:
            return node.payoffs[seat]
        given = list(node.probabilities)
        if node.seat >= 0:
            table = (own if node.seat == seat else other)[node.key]
            given = [table.get(action, 0.0) for action in node.actions]
        legal = sum(given)
        if not forfeits:
            return (
                sum(p * below(c, seat) for p, c in zip(given, node.children, strict=True)) / legal
            )
        paid = -tree.most if node.seat == seat else tree.most
        return (1 - legal) * paid + sum(
            p * below(c, seat) for p, c in zip(given, node.children, strict=True)
        )

    return sum(below(tree.root, seat) for seat in range(2)) / 2


@every_row("legal", 1.0, 0.8)
def test_best_response_bounds_payoff_of_any_pool(legal: float) -> None:
    """One player's gain is the other's loss; exploitability bounds the least gain from below."""
    tree = kuhn()
    own, *others = (drawn(tree, seed, legal) for seed in range(6))
    for forfeits in (False, True):
        for other, won in zip(others, won_from(tree, own, others, forfeits=forfeits), strict=True):
            assert won == pytest.approx(plainly(tree, own, other, forfeits))
            assert won == pytest.approx(-won_from(tree, other, [own], forfeits=forfeits)[0])
            assert won >= -assess(tree, own, forfeits=forfeits).exploitability
    least = least_won(tree, own, dict(enumerate(others)))
    ends = [[won_from(tree, own, [o], forfeits=f)[0] for f in (False, True)] for o in others]
    assert least.low == min(map(min, ends)) and (least.low < least.high) == (legal < 1)
    assert [least.low, least.high] == sorted(ends[least.member])
