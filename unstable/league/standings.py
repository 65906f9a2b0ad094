"""Who won how often against whom, out of games in any order."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import permutations
from statistics import fmean

from unstable.league.fit import Ranking
from unstable.types import PlayerId
from unstable.types.tallies import Least, Tally, added, least_score

Tallies = dict[tuple[str, str], Tally]
"""Tallies: {("main@3", "random"): Tally(5, 1, 2), ("random", "main@3"): Tally(2, 1, 5)}"""
RECENT = 10
"""One in so many of a run's versions counts as the newest."""


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


def least_against_past(found: Mapping[tuple[str, str], Tally]) -> dict[str, Least]:
    """By policy, the newest versions' least score against any of its versions before them.

    The newest tenth counts as one player, since a version has few games against each other one.
    """
    policies: dict[str, set[int]] = {}
    for name in {pair[0] for pair in found}:
        player = PlayerId.parse(name)
        if player.version is not None:
            policies.setdefault(player.label, set()).add(player.version)
    least = {}
    for policy, versions in sorted(policies.items()):
        first = max(versions) - (max(versions) - min(versions)) // RECENT
        against: dict[str, list[Tally]] = {}
        for (one, other), tally in found.items():
            own, its = PlayerId.parse(one), PlayerId.parse(other)
            if own.label == its.label == policy and _is_past(own, its, first):
                against.setdefault(other, []).append(tally)
        worst = least_score({name: added(each) for name, each in against.items()})
        if worst is not None:
            least[policy] = worst
    return least


def _is_past(own: PlayerId, other: PlayerId, first: int) -> bool:
    assert own.version is not None and other.version is not None
    return other.version < first <= own.version
