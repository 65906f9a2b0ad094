"""Makes games/catalog/leduc.json: an equilibrium of Leduc hold'em, by observation.

Run: python scripts/solve_leduc.py [ROUNDS]
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

from unstable.config import GameConfig
from unstable.games.catalog import leduc
from unstable.solving.best_response import Policy, assess
from unstable.solving.tree import Node, Tree, as_key, grow


class Solver:
    """CFR+ for two-player zero-sum games with hidden information (Tammelin 2014, arXiv 1407.5042).

    Seats are updated alternately; the average weights an iteration by its number.
    `best_response.assess` computes the exploitability of the result exactly.
    """

    def __init__(self, tree: Tree) -> None:
        assert tree.seats == 2
        self._tree = tree
        self._rounds = 0
        self._regrets: dict[int, list[float]] = {}
        self._sums: dict[int, list[float]] = {}
        self._shown: dict[int, Node] = {}

    def run(self, rounds: int) -> None:
        """Run `rounds` more iterations."""
        for _ in range(rounds):
            self._rounds += 1
            for seat in range(2):
                gains: dict[int, list[float]] = defaultdict(list)
                self._value(self._tree.root, seat, 1.0, 1.0, gains)
                for number, gained in gains.items():
                    regrets = self._regrets[number]
                    regrets[:] = [max(0.0, r + g) for r, g in zip(regrets, gained, strict=True)]

    def policy(self) -> Policy:
        """Return the average policy of both seats."""
        found = {}
        for number, node in self._shown.items():
            total = sum(self._sums[number])
            assert node.observation is not None
            found[as_key(node.observation)] = {
                action: p / total if total else 1 / len(node.actions)
                for action, p in zip(node.actions, self._sums[number], strict=True)
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
        """Return a position's value to `seat`; `own` and `others` are its reach probabilities."""
        if not node.children:
            return node.payoffs[seat]
        if node.probabilities:
            pairs = zip(node.probabilities, node.children, strict=True)
            return sum(p * self._value(c, seat, own, others * p, gains) for p, c in pairs)
        number = node.information_set
        assert number >= 0, "a game with perfect information has no information sets"
        probabilities = self._probabilities(number, node)
        if node.seat != seat:
            total = 0.0
            for p, child in zip(probabilities, node.children, strict=True):
                if p:
                    total += p * self._value(child, seat, own, others * p, gains)
            return total
        action_values = [
            self._value(child, seat, own * p, others, gains)
            for p, child in zip(probabilities, node.children, strict=True)
        ]
        value = sum(p * each for p, each in zip(probabilities, action_values, strict=True))
        gained = gains[number] or [0.0] * len(action_values)
        gains[number] = [
            g + others * (each - value) for g, each in zip(gained, action_values, strict=True)
        ]
        sums = self._sums[number]
        for action, p in enumerate(probabilities):
            sums[action] += self._rounds * own * p
        return value

    def _probabilities(self, number: int, node: Node) -> list[float]:
        """Return the current policy at a decision by regret matching."""
        if number not in self._regrets:
            self._shown[number] = node
            self._regrets[number] = [0.0] * len(node.actions)
            self._sums[number] = [0.0] * len(node.actions)
        regrets = self._regrets[number]
        total = sum(regrets)
        if not total:
            return [1 / len(regrets)] * len(regrets)
        return [regret / total for regret in regrets]


def main(rounds: int) -> None:
    """Solve the game, print the solution's exploitability, and write it."""
    tree = grow(GameConfig(env="unstable.games.catalog.leduc:Leduc"))
    solver = Solver(tree)
    solver.run(rounds)
    policy = solver.policy()
    found = assess(tree, policy, forfeits=True)
    print(f"{rounds} rounds: exploitability {found.exploitability:.5f}, values {found.values}")
    table = {}
    for node in tree.decisions:
        assert node.observation is not None
        rounded = {action: round(p, 4) for action, p in policy[as_key(node.observation)].items()}
        table[node.observation.position] = {action: p for action, p in rounded.items() if p}
    path = Path(leduc.__file__).with_suffix(".json")
    lines = [f"{json.dumps(key)}: {json.dumps(mix)}" for key, mix in sorted(table.items())]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2000)
