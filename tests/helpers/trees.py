"""A small game's tree, and some policy in one."""

import random
from functools import cache

from unstable.config import GameConfig
from unstable.solving.best_response import Policy
from unstable.solving.tree import Tree, grow

KUHN = GameConfig(env="unstable.games.catalog.kuhn:KuhnPoker", args={"max_rounds": 1})


@cache
def kuhn() -> Tree:
    return grow(KUHN)


def drawn(tree: Tree, seed: int, legal: float = 1.0) -> Policy:
    """Some policy, with so much of its mass on legal actions."""
    rng = random.Random(seed)
    policy = {}
    for node in tree.decisions:
        weights = [rng.random() ** 3 for _ in node.actions]
        shares = (legal * each / sum(weights) for each in weights)
        policy[node.key] = dict(zip(node.actions, shares, strict=True))
    return policy
