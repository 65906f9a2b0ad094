"""Tallies of wins, draws and losses between players, and worst-case scores from them."""

from collections.abc import Iterable, Mapping
from itertools import chain
from statistics import NormalDist
from typing import NamedTuple

from unstable.types.intervals import Interval, mean_interval
from unstable.types.players import PlayerId

LEVEL = 0.95
FEWEST = 8
"""Minimum games of a pair of players to count for a worst case."""
RECENT = 10
"""Inverse of the share of a run's versions that count as the newest."""


class Tally(NamedTuple):
    """Results of one player against another: Tally(wins=5, draws=1, losses=2)"""

    wins: int = 0
    draws: int = 0
    losses: int = 0

    @property
    def games(self) -> int:
        """Number of games."""
        return sum(self)

    @property
    def turned(self) -> "Tally":
        """The tally from the other player's view."""
        return Tally(self.losses, self.draws, self.wins)

    @property
    def share(self) -> float:
        """Wins plus half the draws, per game; 0 without games."""
        return (self.wins + self.draws / 2) / max(1, self.games)

    def score(self, among: int = 1) -> Interval:
        """Return wins plus half the draws, per game, with its interval.

        The intervals of `among` pairs hold jointly with 95 % (Bonferroni).
        """
        z = NormalDist().inv_cdf(1 - (1 - LEVEL) / 2 / among)
        values = [1.0] * self.wins + [0.5] * self.draws + [0.0] * self.losses
        return mean_interval(values, 0.0, 1.0, z=z)


class TermCalls(NamedTuple):
    """Tally of the calls to reward terms that wait, since the last tally, by term.

    TermCalls({"judge": {"calls": 3}}, {"judge": {"seconds": (0.6, 3)}}): `means` has (sum, count).
    """

    counts: dict[str, dict[str, int]]
    means: dict[str, dict[str, tuple[float, int]]]

    def __bool__(self) -> bool:
        return bool(self.counts)

    def plus(self, other: "TermCalls") -> "TermCalls":
        """Return this tally with the calls to other terms added."""
        return TermCalls({**self.counts, **other.counts}, {**self.means, **other.means})


class Least(NamedTuple):
    """The lowest of several scores, with an interval for the lowest true score.

    Least("main@3", Interval(0.41, 0.22, 0.55), games=14, compared=9, left_out=2)
    """

    opponent: str  # against which the score was measured
    score: Interval
    games: int  # number of games against that opponent
    compared: int  # number of opponents
    left_out: int  # number of opponents with fewer games than `fewest`


def least_score(tallies: Mapping[str, Tally], fewest: int = FEWEST) -> Least | None:
    """Return a player's lowest score by opponent; None if no pair has `fewest` games.

    All intervals hold jointly, so the lowest true score is between the lowest lower end and the
    lowest upper end. The lowest measured score is biased low, more so with more opponents.
    """
    known = {name: each for name, each in tallies.items() if each.games >= fewest}
    if not known:
        return None
    scores = {name: each.score(among=len(known)) for name, each in known.items()}
    worst = min(scores, key=lambda name: (scores[name].mean, name))
    low, high = min(each.low for each in scores.values()), min(e.high for e in scores.values())
    return Least(
        opponent=worst,
        score=Interval(scores[worst].mean, low, high),
        games=known[worst].games,
        compared=len(known),
        left_out=len(tallies) - len(known),
    )


def added(tallies: Iterable[Tally]) -> Tally:
    """Return the sum of tallies."""
    return Tally(*map(sum, zip(*tallies, strict=True)))


def first_of_newest(newest: int) -> int:
    """Return the first of the newest versions, for versions numbered from 0 to `newest`.

    >>> first_of_newest(8), first_of_newest(200)
    (8, 180)
    """
    return newest - newest // RECENT


def least_against_past(found: Mapping[tuple[str, str], Tally]) -> dict[str, Least]:
    """Return by policy the newest versions' lowest score against any version before them.

    The newest tenth counts as one player, since a version has few games against each other version.
    """
    players = {name: PlayerId.parse(name) for name in {*chain(*found)}}
    newest: dict[str, int] = {}
    for player in (players[one] for one, _ in found):
        if player.version is not None:
            newest[player.label] = max(player.version, newest.get(player.label, 0))
    least = {}
    for policy, version in sorted(newest.items()):
        first = first_of_newest(version)
        against: dict[str, list[Tally]] = {}
        for (one, other), tally in found.items():
            own, its = players[one], players[other]
            if own.label == its.label == policy and _is_past(own, its, first):
                against.setdefault(other, []).append(tally)
        worst = least_score({name: added(each) for name, each in against.items()})
        if worst is not None:
            least[policy] = worst
    return least


def _is_past(own: PlayerId, other: PlayerId, first: int) -> bool:
    if own.version is None or other.version is None:  # a fixed opponent with the policy's name
        return False
    return other.version < first <= own.version
