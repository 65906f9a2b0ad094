"""A policy as a table: what a seat is shown, and the probability of each legal action."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from unstable.config import ConfigError, shown
from unstable.solving.best_response import Policy, table_at
from unstable.solving.tree import Node, Tree, in_words

_ROUNDING = 1e-6


class TableRow(NamedTuple):
    """One decision. TableRow(0, "K 1/1 +0: check bet", {"[check]": 0.25, "[bet]": 0.75})"""

    seat: int
    position: str  # what the seat is shown
    probabilities: Mapping[str, float]  # what lacks to 1 is the mass of illegal answers


def tabulated(tree: Tree, policy: Policy) -> list[TableRow]:
    """The policy at every information set, or where the game is open at every position."""
    return [
        TableRow(node.seat, name, {a: table_at(policy, node).get(a, 0.0) for a in node.actions})
        for name, node in _named(tree)
    ]


def policy_of(tree: Tree, rows: Sequence[TableRow], place: str) -> Policy:
    """The policy of a table for this tree; raises `ConfigError` that begins with `place`."""
    given = {(row.seat, row.position): row.probabilities for row in rows}
    if len(given) < len(rows):
        raise ConfigError(f"{place}: has a position twice; give each seat's positions once")
    policy: dict[object, Mapping[str, float]] = {}
    for name, node in _named(tree):
        where = f"seat {node.seat} at {shown(name)}"
        if (row := given.pop((node.seat, name), None)) is None:
            raise ConfigError(
                f"{place}: lacks {where}; write all positions as exploit --table does"
            )
        if others := [action for action in row if action not in node.actions]:
            raise ConfigError(
                f"{place}: {where} has {shown(others[0])}, which is none of its legal actions "
                f"{' '.join(node.actions)}"
            )
        if min(row.values(), default=0.0) < 0 or not sum(row.values()) <= 1 + _ROUNDING:
            raise ConfigError(
                f"{place}: probabilities of {where} are {shown(dict(row))}; give them from 0 to 1, "
                "with a sum of 1 at most"
            )
        policy[_key(node)] = row
    for seat, name in given:
        raise ConfigError(f"{place}: seat {seat} never is at {shown(name)}; leave it out")
    return policy


def _key(node: Node) -> object:
    return node.information_set if node.information_set >= 0 else node.key


def _named(tree: Tree) -> Iterator[tuple[str, Node]]:
    """One position of each information set, by a name that is its seat's alone.

    That is what is shown; where a seat is shown the same in several sets they are numbered.
    """
    counts: dict[tuple[int, str], int] = {}
    for node in _decisions(tree):
        assert node.observation is not None
        text = in_words(node.observation)
        count = counts[node.seat, text] = counts.get((node.seat, text), 0) + 1
        yield (text if count == 1 else f"{text} ({count})"), node


def _decisions(tree: Tree) -> Iterator[Node]:
    """The first position of each information set; in an open game each position shown."""
    seen: set[object] = set()
    waiting = [tree.root]
    while waiting:
        node = waiting.pop()
        if not node.children or (node.seat >= 0 and node.information_set < 0):
            continue
        waiting += reversed(node.children)
        if node.seat >= 0 and node.information_set not in seen:
            seen.add(node.information_set)
            yield node
    yield from (node for node in tree.decisions if node.information_set < 0)
