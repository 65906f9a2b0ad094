"""An equilibrium of a game that is solved exactly, by regret matching."""

from collections import defaultdict

from unstable.solving.best_response import Policy
from unstable.solving.tree import Node, Tree, as_key


class Solver:
    """CFR+ for two seats that win what the other loses (Tammelin 2014, arXiv 1407.5042).

    For games that hide something; an open one is solved by looking ahead. Seats take turns; the
    average weighs a round by its number. What comes of it is known exactly: `best_response.assess`.
    """

    def __init__(self, tree: Tree) -> None:
        assert tree.seats == 2
        self._tree = tree
        self._rounds = 0
        self._regrets: dict[int, list[float]] = {}
        self._sums: dict[int, list[float]] = {}
        self._shown: dict[int, Node] = {}

    def run(self, rounds: int) -> None:
        """Go on for so many rounds."""
        for _ in range(rounds):
            self._rounds += 1
            for seat in range(2):
                gains: dict[int, list[float]] = defaultdict(list)
                self._value(self._tree.root, seat, 1.0, 1.0, gains)
                for place, gained in gains.items():
                    regrets = self._regrets[place]
                    regrets[:] = [max(0.0, r + g) for r, g in zip(regrets, gained, strict=True)]

    def policy(self) -> Policy:
        """The average policy of both seats."""
        found = {}
        for place, node in self._shown.items():
            total = sum(self._sums[place])
            assert node.observation is not None
            found[as_key(node.observation)] = {
                action: share / total if total else 1 / len(node.actions)
                for action, share in zip(node.actions, self._sums[place], strict=True)
            }
        return found

    def _value(
        self,
        node: Node,
        seat: int,
        own: float,
        others: float,
        gains: dict[int, list[float]],
    ) -> float:
        """What a position is worth to `seat`, which it reaches by `own`, all else by `others`."""
        if not node.children:
            return node.payoffs[seat]
        if node.chances:
            ways = zip(node.chances, node.children, strict=True)
            return sum(p * self._value(c, seat, own, others * p, gains) for p, c in ways)
        place = node.memory
        assert place >= 0, "an open game has no information sets"
        shares = self._shares(place, node)
        if node.seat != seat:
            total = 0.0
            for share, child in zip(shares, node.children, strict=True):
                if share:
                    total += share * self._value(child, seat, own, others * share, gains)
            return total
        action_values = [
            self._value(child, seat, own * share, others, gains)
            for share, child in zip(shares, node.children, strict=True)
        ]
        worth = sum(share * each for share, each in zip(shares, action_values, strict=True))
        gained = gains[place] or [0.0] * len(action_values)
        gains[place] = [
            g + others * (each - worth) for g, each in zip(gained, action_values, strict=True)
        ]
        sums = self._sums[place]
        for action, share in enumerate(shares):
            sums[action] += self._rounds * own * share
        return worth

    def _shares(self, place: int, node: Node) -> list[float]:
        """What regrets so far make of a decision."""
        if place not in self._regrets:
            self._shown[place] = node
            self._regrets[place] = [0.0] * len(node.actions)
            self._sums[place] = [0.0] * len(node.actions)
        regrets = self._regrets[place]
        total = sum(regrets)
        if not total:
            return [1 / len(regrets)] * len(regrets)
        return [regret / total for regret in regrets]
