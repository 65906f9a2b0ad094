"""Which trajectories of recorded games are trained on."""

from collections.abc import Set
from dataclasses import dataclass

from unstable.types import PAST, GameResult, Trajectory

SELF = "self"
"""Among names of opponents: games in which every seat was trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """What a trajectory has to be, as `config.offline.LearnConfig` says it."""

    winners: bool = False
    versions: tuple[int, int] | None = None
    opponents: frozenset[str] = frozenset()

    def keep(
        self, game: GameResult, own: Trajectory, judged: Set[tuple[int, int]] | None = None
    ) -> bool:
        """Whether a seat's trajectory of a game is trained on; `judged` are those let through."""
        if self.winners and not (own.outcome > 0 and game.forfeit is None):
            return False
        if self.versions is not None:
            first, last = self.versions
            if not all(first <= sample.version <= last for sample in own.samples):
                return False
        if self.opponents and not self.opponents & opponents_of(game):
            return False
        return judged is None or (own.game_id, own.seat) in judged


def opponents_of(game: GameResult) -> set[str]:
    """The names by which a game's opponents may be called."""
    others = [seat.player for seat in game.spec.seats if not seat.trained]
    if not others:
        return {SELF}
    named = {other.name for other in others}
    return named | {PAST} if any(other.version is not None for other in others) else named
