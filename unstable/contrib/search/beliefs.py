"""Beliefs of a seat: the states that its observation allows, with their probabilities."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import NamedTuple

from unstable.games.game import Game
from unstable.solving.tree import Node, Shown, Tree, as_key
from unstable.types import Observation


class State(NamedTuple):
    """A state that the seat to move may be in."""

    probability: float
    line: Callable[[Random], "Line"]  # begins a line that draws its chance from the generator
    node: Node | None = None  # its position in the game's tree


Belief = Sequence[State]
"""States with probabilities that add up to 1, at all of which the same seat moves."""
PolicyAt = Mapping[Shown, Mapping[str, float]]
"""Probability of each legal action by observation, adding up to 1."""


def of_game(copies: Callable[[], Game]) -> Belief:
    """Return the belief of a seat that sees everything, except draws of chance to come."""

    def line(rng: Random) -> Game:
        game = copies()
        game.reseed(rng.getrandbits(63))
        return game

    return [State(1.0, line)]


class TreeLine:
    """A game from a position of a tree on."""

    def __init__(self, node: Node, scale: float, rng: Random) -> None:
        """Begin at a decision; `scale` divides payoffs."""
        self._node, self._scale, self._rng = node, scale, rng

    @property
    def done(self) -> bool:
        return not self._node.children

    @property
    def outcomes(self) -> list[float]:
        return [payoff / self._scale for payoff in self._node.payoffs]

    @property
    def seat(self) -> int:
        return self._node.seat

    def observe(self) -> Observation:
        return self._node.shown

    def legal_moves(self) -> list[str]:
        return list(self._node.actions)

    def step(self, action: str) -> None:
        self._node = after(self._node, action)
        while self._node.probabilities:
            (self._node,) = self._rng.choices(self._node.children, self._node.probabilities)


Line = Game | TreeLine
"""A game that search plays on."""


def after(node: Node, action: str) -> Node:
    """Return the position after an action, which may be a chance node."""
    return node.children[node.actions.index(action)]


class TreePositions:
    """Positions of a tree by the observation of the seat to move, and the paths to them."""

    def __init__(self, tree: Tree, scale: float) -> None:
        """Index a tree; `scale` divides payoffs."""
        self.scale = scale
        self._at: dict[Shown, list[Node]] = defaultdict(list)
        self._before: dict[int, tuple[Node, int]] = {}  # a child's parent and index, by id
        for node in tree.parents_first():
            if node.seat >= 0:
                self._at[node.key].append(node)
            for index, child in enumerate(node.children):
                self._before[id(child)] = node, index

    def at(self, observation: Observation) -> list[Node]:
        """Return the positions with this observation; `ValueError` if the tree has none."""
        if not (found := self._at.get(as_key(observation))):
            raise ValueError(f"the game's tree has no position that shows {observation}")
        return found

    def path(self, node: Node) -> list[tuple[Node, int]]:
        """Return the positions before a node, newest first, each with the index of its child."""
        found, here = [], self._before.get(id(node))
        while here is not None:
            found.append(here)
            here = self._before.get(id(here[0]))
        return found

    def belief(self, observation: Observation, policy: PolicyAt) -> Belief:
        """Return the posterior of the positions that a seat cannot distinguish.

        `policy` plays all seats; only decisions before these positions are looked up. By Bayes'
        rule a position's probability is proportional to the product over its draws and moves.
        If the policy reaches none of the positions, its moves do not count.
        """
        nodes = self.at(observation)
        paths = [self.path(node) for node in nodes]
        chance = [math.prod(n.probabilities[i] for n, i in path if n.seat < 0) for path in paths]
        weights = [
            each * math.prod(policy[n.key][n.actions[i]] for n, i in path if n.seat >= 0)
            for each, path in zip(chance, paths, strict=True)
        ]
        weights = weights if any(weights) else chance
        total = math.fsum(weights)
        return [
            State(weight / total, lambda rng, node=node: TreeLine(node, self.scale, rng), node)  # type: ignore[misc]
            for weight, node in zip(weights, nodes, strict=True)
        ]
