"""True advantages: by hand in Kuhn poker, and as the average of all games played out."""

from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

from bench.credit import credit
from tests.helpers.rows import every_row
from tests.helpers.trees import drawn, kuhn
from unstable.config import GameConfig
from unstable.solving.best_response import Policy, table_at
from unstable.solving.tree import Node, Shown, Tree, grow

NIM = GameConfig(env="Nim-v0", args={"piles": [1, 2]})
TREES: dict[str, Callable[[], Tree]] = {"Kuhn": kuhn, "Nim": lambda: grow(NIM)}
Visit = tuple[Shown, int, int]  # decision, action, seat


def games(
    tree: Tree, policy: Policy, node: Node, forfeits: bool
) -> Iterator[tuple[float, list[Visit], tuple[float, ...]]]:
    """Yield every game from a position on: probability, moves (-1 for a forfeit) and payoffs."""
    if not node.children:
        yield 1.0, [], node.payoffs
        return
    moves = [*enumerate(node.probabilities)]
    if node.seat >= 0:
        given = [table_at(policy, node)[action] for action in node.actions]
        legal = sum(given)
        moves = [*enumerate(given if forfeits else [each / legal for each in given])]
        if forfeits and legal < 1:
            lost = [tree.most] * tree.seats
            lost[node.seat] = -tree.most
            yield 1 - legal, [(node.key, -1, node.seat)], tuple(lost)
    for action, p in moves:
        for q, visits, payoffs in games(tree, policy, node.children[action], forfeits):
            here = [(node.key, action, node.seat)] if node.seat >= 0 else []
            yield p * q, here + visits, payoffs


@every_row("name", *TREES)
@every_row("legal", 1.0, 0.9)
@every_row("forfeits", False, True)
def test_move_value_is_mean_over_its_games(name, legal, forfeits):
    tree = TREES[name]()
    policy = drawn(tree, seed=3, legal=legal)
    found = credit(tree, policy, forfeits=forfeits)
    reach: dict[tuple[Shown, int], float] = defaultdict(float)
    won: dict[tuple[Shown, int], float] = defaultdict(float)
    for p, visits, payoffs in games(tree, policy, tree.root, forfeits):
        for shown, action, seat in visits:
            for each in ({action} | {-2}) - {-1}:  # -2: any action
                reach[shown, each] += p
                won[shown, each] += p * payoffs[seat]
    assert found.keys() == {node.key for node in tree.decisions}
    for shown, worth in found.items():
        assert worth.reach == pytest.approx(reach[shown, -2])
        assert worth.value == pytest.approx(won[shown, -2] / reach[shown, -2])
        for action, value in enumerate(worth.actions):
            assert value == pytest.approx(won[shown, action] / reach[shown, action])
            assert worth.advantages[action] == pytest.approx(value - worth.value)


def test_unreached_positions_have_no_credit() -> None:
    tree = kuhn()
    policy = {}
    for node in tree.decisions:  # always the first action
        policy[node.key] = {action: float(not n) for n, action in enumerate(node.actions)}
    found = credit(tree, policy, forfeits=False)
    assert 0 < len(found) < len(tree.decisions)
    assert sum(each.reach for each in found.values()) == pytest.approx(2.0)  # turns per game
