"""Games saved by control variates, and coverage of their intervals, in games with a small tree.

    python -m bench.aivat RUN [RUN ...] [--deals 128] [--matches 2000]

RUN has policies of at least three versions after the start (eval.exploitability.every). Its newest
version plays the middle one, in matches of `--deals` deals from both sides, by the exact policies.
The values of positions are those of self-play of the version at a quarter, or of uniform play, or
the former with noise of the size of their spread. For each, and for each set of corrected draws,
the table shows the factor by which control variates reduce the squared width of the 95 % interval,
the factor without fitted coefficients (`unscaled`), the share of intervals that cover the exact
payoff, also of plain ones, and the share of deals whose control variate was used.
"""

import argparse
from collections.abc import Callable, Sequence
from itertools import accumulate
from pathlib import Path
from random import Random
from statistics import pstdev
from typing import Literal, NamedTuple

from unstable.commands.prepare import exact_games
from unstable.config import load
from unstable.records.folder import RunFolder
from unstable.records.policies import read_policy
from unstable.records.reading import Skipped
from unstable.solving.best_response import Policy, PolicyValues, assess, table_at
from unstable.solving.control_variates import Draw, corrected, luck
from unstable.solving.draws import chance, decision
from unstable.solving.exploiter import policy_by
from unstable.solving.pool import won_from
from unstable.solving.tree import Node, Tree, grow
from unstable.types.intervals import Interval, student_interval

Kind = Literal["chance", "own", "other"]
ALL: tuple[Kind, ...] = ("chance", "own", "other")
CASES: tuple[tuple[str, tuple[Kind, ...]], ...] = (
    ("earlier version", ALL),
    ("earlier version", ("chance", "own")),
    ("earlier version", ("chance",)),
    ("uniform play", ALL),
    ("noise", ALL),
)
"""Values of positions, and corrected draws; an external program's moves have none."""


class Measured(NamedTuple):
    """Result of many matches."""

    factor: float  # squared width of the plain interval over the corrected one's, means
    coverage: float  # of the corrected interval
    plain: float  # coverage of the plain interval
    used: float  # share of the coefficients that are not 0
    unscaled: float  # factor with the coefficient 1 instead of fitted ones


class Sampler:
    """Sampler of games between two policies, with the luck of the first."""

    def __init__(
        self,
        tree: Tree,
        players: Sequence[Policy],
        value: Callable[[Node], Sequence[float]],
        kinds: Sequence[Kind],
    ) -> None:
        self._tree, self._players, self._value, self._kinds = tree, players, value, kinds
        self._known: dict[tuple[int, int], tuple[Draw[Node], list[float], list[float]]] = {}

    def play(self, side: int, cards: Sequence[float], rng: Random) -> tuple[float, float]:
        """Return payoff and luck of the first player at a seat; `cards` are the draws of chance."""
        node, total, dealt = self._tree.root, 0.0, iter(cards)
        while node.children:
            draw, ends, lucks = self._at(node, side)
            at = next(dealt) if node.seat < 0 else rng.random()
            place = next((n for n, end in enumerate(ends) if at < end), len(ends) - 1)
            total += lucks[place]
            node = draw.successors[place]
        return node.payoffs[side], total

    def _at(self, node: Node, side: int) -> tuple[Draw[Node], list[float], list[float]]:
        """Return the draw at a node, with cumulative probabilities and luck per outcome."""
        if (id(node), side) not in self._known:
            own = node.seat == side
            if node.seat < 0:
                draw, kind = chance(node, 0), "chance"
            else:
                lost, kind = Node(payoffs=self._tree.forfeit(node.seat)), "own" if own else "other"
                draw = decision(node, table_at(self._players[not own], node), None, lost)
            lucks = [0.0] * len(draw.successors)
            if kind in self._kinds:
                lucks = [
                    luck([draw._replace(taken=n)], self._value, [side]) for n in range(len(lucks))
                ]
            self._known[id(node), side] = draw, [*accumulate(draw.probabilities)], lucks
        return self._known[id(node), side]


def value_of(tree: Tree, earlier: Policy, name: str) -> Callable[[Node], Sequence[float]]:
    """Return the values of positions that a case names."""
    if name == "uniform play":
        even = {n.key: dict.fromkeys(n.actions, 1 / len(n.actions)) for n in tree.decisions}
        return PolicyValues(tree, even, forfeits=True).of
    exact = PolicyValues(tree, earlier, forfeits=True).of
    if name == "earlier version":
        return exact
    rng, inner = Random(0), [node for node in tree.parents_first() if node.children]
    spread = pstdev(exact(node)[0] for node in inner)
    errors = {id(node): rng.gauss(0, spread) for node in inner}

    def noisy(node: Node) -> Sequence[float]:
        first, second = exact(node)
        error = errors.get(id(node), 0.0)
        return first + error, second - error

    return noisy


def measured(
    tree: Tree,
    own: Policy,
    other: Policy,
    earlier: Policy,
    values: str,
    kinds: Sequence[Kind],
    deals: int,
    matches: int,
) -> Measured:
    """Play matches of `deals` deals from both sides, and compare intervals with the truth."""
    sampler = Sampler(tree, (own, other), value_of(tree, earlier, values), kinds)
    truth, rng = float(won_from(tree, own, [other], forfeits=True)[0]), Random(1)
    widths, covers, used = [0.0] * 3, [0] * 3, 0
    for _ in range(matches):
        payoffs, lucks = [], []
        for _ in range(deals):
            cards = [rng.random() for _ in range(8)]
            (one, luck_one), (two, luck_two) = (sampler.play(s, cards, rng) for s in (0, 1))
            payoffs.append((one + two) / 2)
            lucks.append((luck_one + luck_two) / 2)
        found = corrected(payoffs, lucks)
        used += sum(each > 0 for each in found.coefficients)
        whole = [payoff - each for payoff, each in zip(payoffs, lucks, strict=True)]
        ends = student_interval(payoffs), found.interval, student_interval(whole)
        for place, each in enumerate(ends):
            interval = each or Interval(found.mean, found.mean, found.mean)
            widths[place] += (interval.high - interval.low) ** 2
            covers[place] += interval.low - 1e-9 <= truth <= interval.high + 1e-9
    factor, unscaled = (widths[0] / max(each, 1e-300) for each in widths[1:])
    covered, plain = covers[1] / matches, covers[0] / matches
    return Measured(factor, covered, plain, used / 2 / matches, unscaled)


def rows(folder: RunFolder, deals: int, matches: int) -> list[str]:
    """Return the table's lines of a run's games."""
    config, found = load(str(folder.config)), []
    versions = [version for version in folder.measured() if version]
    last = len(versions) - 1
    chosen = versions[last], versions[last // 2], versions[last // 4]
    by_version = [read_policy(folder, version, Skipped()) for version in chosen]
    for game in exact_games(config):
        tree = grow(config.game_by_key[game], config.eval.exploitability.nodes)
        own, other, earlier = (policy_by(tree, each[game]) for each in by_version)
        far = [assess(tree, each, forfeits=True).exploitability for each in (own, other, earlier)]
        print(f"{game}: versions {chosen}, exploitability {', '.join(f'{x:.3f}' for x in far)}")
        for values, kinds in CASES:
            result = measured(tree, own, other, earlier, values, kinds, deals, matches)
            cells = [f"{each:.2f}" for each in (result.factor, result.unscaled)]
            cells += [f"{100 * each:.1f} %" for each in result[1:4]]
            found.append(f"| {game} | {values} | {', '.join(kinds)} | {' | '.join(cells)} |")
            print(found[-1], flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of runs with policies")
    parser.add_argument("--deals", type=int, default=128, help="deals of a match")
    parser.add_argument("--matches", type=int, default=2000)
    args = parser.parse_args(argv)
    lines = [line for run in args.runs for line in rows(RunFolder(run), args.deals, args.matches)]
    print("\n| game | values | draws | factor | unscaled | coverage | plain coverage | used |")
    print("|---|---|---|---|---|---|---|---|")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
