"""How often one player won, drew and lost against another, and what follows from such counts."""

from collections.abc import Iterable, Mapping
from itertools import chain
from statistics import NormalDist
from typing import NamedTuple

from unstable.types.intervals import Interval, mean_interval
from unstable.types.players import PlayerId

LEVEL = 0.95
FEWEST = 8
"""Games below which a pair says too little about a worst case."""
RECENT = 10
"""One in so many of a run's versions is of the newest."""


class Tally(NamedTuple):
    """Results of one player against another: Tally(wins=5, draws=1, losses=2)"""

    wins: int = 0
    draws: int = 0
    losses: int = 0

    @property
    def games(self) -> int:
        """All of them."""
        return sum(self)

    @property
    def turned(self) -> "Tally":
        """The other player's."""
        return Tally(self.losses, self.draws, self.wins)

    def plus(self, other: "Tally") -> "Tally":
        """Both together."""
        return Tally(*(own + its for own, its in zip(self, other, strict=True)))

    @property
    def share(self) -> float:
        """Wins plus half the draws, per game; 0 of none."""
        return (self.wins + self.draws / 2) / max(1, self.games)

    def score(self, among: int = 1) -> Interval:
        """Wins plus half the draws, per game, with its interval.

        The intervals of so many pairs hold all together with 95 % (Bonferroni).
        """
        z = NormalDist().inv_cdf(1 - (1 - LEVEL) / 2 / among)
        values = [1.0] * self.wins + [0.5] * self.draws + [0.0] * self.losses
        return mean_interval(values, 0.0, 1.0, z=z)


class TermCalls(NamedTuple):
    """Questions to reward terms that wait since the last such value, by term.

    Asked({"judge": {"calls": 3}}, {"judge": {"seconds": (0.6, 3)}}): sums, with how many they are.
    """

    counts: dict[str, dict[str, int]]
    means: dict[str, dict[str, tuple[float, int]]]

    def __bool__(self) -> bool:
        return bool(self.counts)

    def plus(self, other: "TermCalls") -> "TermCalls":
        """Add what other terms have been asked."""
        return TermCalls({**self.counts, **other.counts}, {**self.means, **other.means})


class Least(NamedTuple):
    """The least score of several, whose interval holds for the least of the true ones.

    Least("main@3", Interval(0.41, 0.22, 0.55), games=14, compared=9, left_out=2)
    """

    opponent: str  # against whom it was seen
    score: Interval
    games: int  # that it was seen in
    compared: int  # opponents
    left_out: int  # opponents with fewer games than `fewest`


def least_score(tallies: Mapping[str, Tally], fewest: int = FEWEST) -> Least | None:
    """Return a player's least score by opponent; None where no pair has enough games.

    All intervals hold together, so the least true score lies between the least lower and the least
    upper end. The least score seen is below it on average: the more opponents, the further.
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
    """All of them together."""
    return Tally(*map(sum, zip(*tallies, strict=True)))


def first_of_newest(newest: int) -> int:
    """The first of the newest versions, where they are numbered from 0 to `newest`.

    >>> first_of_newest(8), first_of_newest(200)
    (8, 180)
    """
    return newest - newest // RECENT


def least_against_past(found: Mapping[tuple[str, str], Tally]) -> dict[str, Least]:
    """Return by policy the newest versions' least score against any version before them.

    The newest tenth counts as one player, since a version has few games against each other one.
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
    assert own.version is not None and other.version is not None
    return other.version < first <= own.version
