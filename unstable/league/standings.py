"""Who won how often against whom, out of games in any order."""

from collections import Counter
from collections.abc import Iterable
from itertools import permutations
from statistics import fmean

from unstable.league.fit import Ranking
from unstable.types.tallies import Tally

Tallies = dict[tuple[str, str], Tally]
"""Tallies: {("main@3", "random"): Tally(5, 1, 2), ("random", "main@3"): Tally(2, 1, 5)}"""


def tallies(games: Iterable[Ranking]) -> Tallies:
    """Each player's results against each other; one of several sides has their mean place.

    A forfeit is a loss. A game with a single player in it compares nobody.
    """
    wins: Counter[tuple[str, str]] = Counter()
    draws: Counter[tuple[str, str]] = Counter()
    for (_, players, ranks, _), count in Counter(games).items():
        held: dict[str, list[int]] = {}
        for player, rank in zip(players, ranks, strict=True):
            held.setdefault(player, []).append(rank)
        for one, other in permutations(held, 2):
            own, its = fmean(held[one]), fmean(held[other])
            wins[one, other] += count * (own < its)
            draws[one, other] += count * (own == its)
    return {(a, b): Tally(wins[a, b], draws[a, b], wins[b, a]) for a, b in sorted(wins)}
