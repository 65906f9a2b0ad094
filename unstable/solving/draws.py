"""Draws of a recorded game whose probabilities are known, found by replaying it along the tree.

A game's record has its seed and its actions; the replay finds the draws of chance between them.
"""

from collections.abc import Callable, Iterator, Mapping

from unstable.config import GameConfig
from unstable.games.chance import noted
from unstable.games.game import Game
from unstable.solving.best_response import Policy, table_at
from unstable.solving.control_variates import Draw
from unstable.solving.tree import Node, Tree
from unstable.types import GameResult, Turn

Known = Callable[[Node, Game], Mapping[str, float]]
"""Exact probability of each legal action at a position; the rest to 1 is any other answer."""
PROGRAMS: dict[str, Known] = {
    "random": lambda node, game: dict.fromkeys(node.actions, 1 / len(node.actions)),
    "expert": lambda node, game: game.expert_moves(),
    "rules": lambda node, game: game.rule_moves(),
}
"""Policies of built-in opponents by kind, as `collectors/players/programs.py` plays them."""


def tabled(policy: Policy) -> Known:
    """Return the policy of a table."""
    return lambda node, game: table_at(policy, node)


def replayed(config: GameConfig, result: GameResult) -> Iterator[tuple[Game, Turn]]:
    """Yield each turn of a recorded game with the game before it."""
    game = Game(config, result.spec.seed)
    for turn in result.turns:
        game.observe()
        yield game, turn
        game.step(turn.answer.action)


def chance(node: Node, taken: int) -> Draw[Node]:
    """Return the draw at a chance node."""
    return Draw(node.probabilities, node.children, taken)


def decision(node: Node, table: Mapping[str, float], action: str | None, other: Node) -> Draw[Node]:
    """Return the draw of a move; `action` None is any answer without a probability in the table.

    Such answers, illegal ones and unusual spellings of legal ones, are one outcome with the mass
    that the table leaves and the successor `other`, which may have any value.
    """
    given = [table.get(each, 0.0) for each in node.actions]
    place = node.actions.index(action) if action in node.actions else len(given)
    return Draw((*given, max(0.0, 1 - sum(given))), (*node.children, other), place)


def draws(
    tree: Tree,
    config: GameConfig,
    result: GameResult,
    known: Mapping[int, Known],
    is_listed: Callable[[Turn], bool],
) -> Iterator[Draw[Node]]:
    """Yield the draws of chance, and of the seats with known probabilities, in order.

    `is_listed` tells whether a legal answer is the one that a policy's probability refers to.
    The successor of an illegal answer is a forfeit or, if the config allows another try, the same
    position. Further tries have another prompt, so their probabilities are not known and they are
    left out, as is everything after a legal move that the tree spells differently. Leaving draws
    out keeps the mean, since it depends only on earlier draws.
    """
    with noted() as drawn:
        game = Game(config, result.spec.seed)
    node, again = tree.root, False
    if node.draws:
        taken = node.draws.index(tuple(drawn))
        yield chance(node, taken)
        node = node.children[taken]
    for turn in result.turns:
        game.observe()
        action = turn.answer.action
        if turn.seat in known and not again:
            can_retry = config.invalid_moves.allowed > 0
            other = node if can_retry else Node(payoffs=tree.forfeit(turn.seat))
            table = known[turn.seat](node, game)
            listed = action in node.actions and is_listed(turn)
            yield decision(node, table, action if listed else None, other)
        with noted() as drawn:
            again = game.step(action).invalid
        if again:
            continue
        if action not in node.actions:
            return
        node = node.children[node.actions.index(action)]
        if node.draws:
            taken = node.draws.index(tuple(drawn))
            yield chance(node, taken)
            node = node.children[taken]
