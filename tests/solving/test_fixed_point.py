"""Fixed points of regularized self-play: exact figures, and their own equation."""

import math
from collections import defaultdict

import pytest

from tests.helpers.rows import every_row
from tests.helpers.trees import tree_of
from unstable.config import GameConfig
from unstable.solving.best_response import Policy, PolicyValues, table_at
from unstable.solving.fixed_point import fixed_point, floor_of
from unstable.solving.tree import Node, Tree, grow

KUHN_3 = GameConfig(env="open_spiel:kuhn_poker(players=3)", seats=3)


@every_row(
    "game, scale, weight, expected",
    # By mirror descent without extrapolation on OpenSpiel's trees.
    ("leduc", 3.25, 0.2, 0.296),
    ("leduc", 3.25, 0.1, 0.141),
    ("leduc", 3.25, 0.05, 0.067),
    ("kuhn", 1.0, 0.1, 0.019),
    ("kuhn", 1.0, 0.05, 0.007),
)
def test_floor_of_a_fixed_reference(game, scale, weight, expected):
    assert floor_of(tree_of(game), weight, scale) == pytest.approx(expected, abs=0.0007)


def test_floor_that_does_not_settle_is_unknown() -> None:
    assert floor_of(tree_of("kuhn"), 1e-5, 1.0) is None


def action_values(tree: Tree, policy: Policy) -> dict[object, list[float]]:
    """Return Q of each move by observation, from all histories one by one."""
    values = PolicyValues(tree, policy, forfeits=False)
    sums: dict[object, list[float]] = {}
    reaches: dict[object, float] = defaultdict(float)

    def visit(node: Node, reach: float) -> None:
        if not node.children:
            return
        shares = node.probabilities
        if node.seat >= 0:
            shares = tuple(table_at(policy, node)[action] for action in node.actions)
            reaches[node.key] += reach
            total = sums.setdefault(node.key, [0.0] * len(node.actions))
            for place, child in enumerate(node.children):
                total[place] += reach * values.of(child)[node.seat]
        for share, child in zip(shares, node.children, strict=True):
            visit(child, reach * share)

    visit(tree.root, 1.0)
    return {key: [each / reaches[key] for each in total] for key, total in sums.items()}


def settles(tree: Tree, weight: float) -> None:
    """Assert that each decision's policy is the softmax of its own Q over the weight."""
    policy = fixed_point(tree, weight, scale=2.0)
    assert policy is not None
    worth = action_values(tree, policy)
    assert len(worth) == len(tree.decisions)
    for node in tree.decisions:
        powers = [math.exp(each / 2.0 / weight) for each in worth[node.key]]
        expected = [each / sum(powers) for each in powers]
        assert [*policy[node.key].values()] == pytest.approx(expected, abs=0.01)


def test_two_seats_settle_at_their_softmax() -> None:
    settles(tree_of("kuhn"), 0.1)


def test_merged_positions_settle_at_their_softmax() -> None:
    settles(grow(GameConfig(env="Nim-v0", args={"piles": [1, 2, 2]})), 0.1)


def test_three_seats_settle_at_their_softmax() -> None:
    pytest.importorskip("pyspiel", reason="open_spiel is not installed")
    settles(grow(KUHN_3), 0.1)
