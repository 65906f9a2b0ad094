"""Small games' trees, and policies in them."""

import random
from functools import cache

from unstable.config import GameConfig
from unstable.solving.best_response import Policy
from unstable.solving.tree import Tree, grow

KUHN = GameConfig(env="unstable.games.catalog.kuhn:KuhnPoker", args={"max_rounds": 1})


LEDUC = GameConfig(env="unstable.games.catalog.leduc:Leduc")
TIC_TAC_TOE = GameConfig(env="TicTacToe-v0")


@cache
def tree_of(game: str) -> Tree:
    return grow({"kuhn": KUHN, "leduc": LEDUC, "tic_tac_toe": TIC_TAC_TOE}[game])


def kuhn() -> Tree:
    return tree_of("kuhn")


def uniform(tree: Tree) -> Policy:
    return {node.key: dict.fromkeys(node.actions, 1 / len(node.actions)) for node in tree.decisions}


def drawn(tree: Tree, seed: int, legal: float = 1.0) -> Policy:
    """Return a random policy with `legal` of its mass on legal actions."""
    rng = random.Random(seed)
    policy = {}
    for node in tree.decisions:
        weights = [rng.random() ** 3 for _ in node.actions]
        shares = (legal * each / sum(weights) for each in weights)
        policy[node.key] = dict(zip(node.actions, shares, strict=True))
    return policy
