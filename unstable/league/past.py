"""Results by pair of players, and of versions against their own past."""

from collections import Counter
from collections.abc import Iterable
from itertools import permutations
from statistics import fmean

from pydantic import BaseModel

from unstable.league.fit import Ranking, ranking
from unstable.types import GameResult, GameSpec, PlayedGame, PlayerId
from unstable.types.tallies import Least, Tally, added, first_of_newest, least_against_past

Tallies = dict[tuple[str, str], Tally]
"""Tallies: {("main@3", "random"): Tally(5, 1, 2), ("random", "main@3"): Tally(2, 1, 5)}"""


def tallies(games: Iterable[Ranking]) -> Tallies:
    """Return each player's results against each other player, by mean rank if it has several sides.

    A forfeit is a loss. Games with a single player are left out.
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


class PastState(BaseModel):
    """Results of a policy's versions, by name, against each of its earlier versions."""

    results: dict[str, dict[str, Tally]]


class PastResults:
    """Results of the newest versions against their past, independent of the order of games."""

    def __init__(self) -> None:
        self._results: dict[str, dict[str, Tally]] = {}

    def record(self, games: Iterable[GameResult | PlayedGame]) -> None:
        """Add rated games; only those between versions of one policy count."""
        met = [ranking(game) for game in games if _has_two_versions(game.spec)]
        if not met:
            return
        for (one, other), tally in tallies(each for each in met if each is not None).items():
            if _is_before(PlayerId.parse(other), PlayerId.parse(one)):
                held = self._results.setdefault(one, {})
                held[other] = added([held.get(other, Tally()), tally])
        self._forget()

    def _forget(self) -> None:
        """Drop versions that are no longer among the newest, and never will be again."""
        versions = {name: PlayerId.parse(name) for name in self._results}
        for policy in {player.label for player in versions.values()}:
            own = {n: p.version or 0 for n, p in versions.items() if p.label == policy}
            first = first_of_newest(max(own.values()))
            for name in (name for name, version in own.items() if version < first):
                del self._results[name]

    def least(self) -> dict[str, Least]:
        """Return `least_against_past` of all games so far, by policy."""
        found = {(a, b): tally for a, held in self._results.items() for b, tally in held.items()}
        return least_against_past(found)

    def state(self) -> PastState:
        """Return the state that `restore` takes."""
        return PastState(results=self._results)

    def restore(self, state: PastState) -> None:
        """Continue from what `state` returned."""
        self._results = {name: dict(held) for name, held in state.results.items()}


def _has_two_versions(spec: GameSpec) -> bool:
    versions = [seat.player for seat in spec.seats if seat.player.version is not None]
    return any(player != versions[0] for player in versions)


def _is_before(one: PlayerId, other: PlayerId) -> bool:
    if one.label != other.label or one.version is None or other.version is None:
        return False
    return one.version < other.version
