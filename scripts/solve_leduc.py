"""Makes games/catalog/leduc.json: an equilibrium of Leduc hold'em, by what a seat is shown.

Run: python scripts/solve_leduc.py [ROUNDS]
"""

import json
import sys
from pathlib import Path

from unstable.config import GameConfig
from unstable.games.catalog import leduc
from unstable.solving.best_response import assess
from unstable.solving.solver import Solver
from unstable.solving.tree import as_key, grow

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
tree = grow(GameConfig(env="unstable.games.catalog.leduc:Leduc"))
solver = Solver(tree)
solver.run(rounds)
policy = solver.policy()
found = assess(tree, policy, forfeits=True)
print(f"{rounds} rounds: exploitability {found.exploitability:.5f}, values {found.values}")
table = {}
for node in tree.decisions:
    assert node.observation is not None
    shares = {action: round(p, 4) for action, p in policy[as_key(node.observation)].items()}
    table[node.observation.position] = {action: p for action, p in shares.items() if p}
path = Path(leduc.__file__).with_suffix(".json")
lines = [f"{json.dumps(key)}: {json.dumps(shares)}" for key, shares in sorted(table.items())]
path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
