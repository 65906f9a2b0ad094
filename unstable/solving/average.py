"""The average of several policies, as the theory of CFR and of fictitious play means it.

Whoever draws one of the policies before a game and plays it to the end plays, at each information
set, their mean weighted by how probable each makes it that its seat gets there (Zinkevich et al.
2007, Regret Minimization in Games with Incomplete Information).
"""

from collections.abc import Sequence

from unstable.config import ConfigError
from unstable.solving.best_response import Policy, PolicyValues
from unstable.solving.tree import Node, Tree


def averaged(tree: Tree, policies: Sequence[Policy], *, forfeits: bool) -> Policy:
    """The average, by number of information set; illegal mass as in `best_response.assess`.

    Raises `ConfigError` where every seat sees all: such a tree does not keep how a seat got to a
    position.
    """
    if any(node.information_set < 0 for node in tree.decisions):
        raise ConfigError(
            "--average: a game in which every seat sees all has no average policy here, since its "
            "tree does not keep what led to a position; give one version"
        )
    played = [PolicyValues(tree, policy, forfeits) for policy in policies]
    found: dict[int, dict[str, float]] = {}

    def visit(node: Node, reached: Sequence[Sequence[float]]) -> None:
        """`reached`: by policy and seat, how probable the seat's own moves until here are."""
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
