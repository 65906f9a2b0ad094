"""Average of several policies, as in counterfactual regret minimization and fictitious play.

Drawing one policy before each game and playing it to the end is equivalent to the mean of the
policies at each information set, weighted by the probability that a seat's own moves reach the set
(Zinkevich et al. 2007, Regret Minimization in Games with Incomplete Information).
"""

from collections.abc import Sequence

from unstable.config import ConfigError
from unstable.solving.best_response import Policy, PolicyValues
from unstable.solving.tree import Node, Tree


def averaged(tree: Tree, policies: Sequence[Policy], *, forfeits: bool) -> Policy:
    """Return the average policy by number of information set.

    `forfeits` treats illegal mass as `best_response.assess`. Raises `ConfigError` for a game of
    perfect information, whose tree does not record how a seat reached a position.
    """
    if any(node.information_set < 0 for node in tree.decisions):
        raise ConfigError(
            "--average: unsupported for games of perfect information, whose tree does not record "
            "how a seat reached a position; give one version"
        )
    played = [PolicyValues(tree, policy, forfeits) for policy in policies]
    found: dict[int, dict[str, float]] = {}

    def visit(node: Node, reached: Sequence[Sequence[float]]) -> None:
        """Visit a node; `reached` has the probability of each seat's own moves, by policy."""
        if not node.children:
            return
        if node.seat < 0:
            for child in node.children:
                visit(child, reached)
            return
        here = [each.probabilities(node)[0] for each in played]
        weights = [own[node.seat] for own in reached]
        if node.information_set not in found:
            weighted = weights if sum(weights) > 0 else [1.0] * len(weights)
            found[node.information_set] = {
                action: sum(w * p[place] for w, p in zip(weighted, here, strict=True))
                / sum(weighted)
                for place, action in enumerate(node.actions)
            }
        for place, child in enumerate(node.children):
            visit(
                child,
                [
                    [
                        each * (p[place] if seat == node.seat else 1.0)
                        for seat, each in enumerate(own)
                    ]
                    for own, p in zip(reached, here, strict=True)
                ],
            )

    visit(tree.root, [[1.0] * tree.seats for _ in policies])
    return found
