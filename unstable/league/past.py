"""How versions did against versions before them, while a run goes on."""

from collections.abc import Iterable

from pydantic import BaseModel

from unstable.league.fit import ranking, tallies
from unstable.types import GameResult, GameSpec, PlayedGame, PlayerId
from unstable.types.tallies import Least, Tally, first_of_newest, least_against_past


class PastState(BaseModel):
    """Results of a policy's versions, by name, against each version of it before them."""

    results: dict[str, dict[str, Tally]]


class PastResults:
    """Results of the newest versions against their past; no order of games matters."""

    def __init__(self) -> None:
        self._results: dict[str, dict[str, Tally]] = {}

    def record(self, games: Iterable[GameResult | PlayedGame]) -> None:
        """Take in rated games, of which most are of other players or of a version with itself."""
        met = [ranking(game) for game in games if _has_two_versions(game.spec)]
        if not met:
            return
        for (one, other), tally in tallies(each for each in met if each is not None).items():
            if _is_before(PlayerId.parse(other), PlayerId.parse(one)):
                held = self._results.setdefault(one, {})
                held[other] = held.get(other, Tally()).plus(tally)
        self._forget()

    def _forget(self) -> None:
        """Leave out versions that no longer are of the newest, and never will be again."""
        versions = {name: PlayerId.parse(name) for name in self._results}
        for policy in {player.label for player in versions.values()}:
            own = {n: p.version or 0 for n, p in versions.items() if p.label == policy}
            first = first_of_newest(max(own.values()))
            for name in (name for name, version in own.items() if version < first):
                del self._results[name]

    def least(self) -> dict[str, Least]:
        """What `least_against_past` says of all games so far, by policy."""
        found = {(a, b): tally for a, held in self._results.items() for b, tally in held.items()}
        return least_against_past(found)

    def state(self) -> PastState:
        """All that a resume needs."""
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
