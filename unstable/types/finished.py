"""What an actor hands to the loop of a training game: what counts of it, and its samples sealed."""

from typing import NamedTuple

from unstable.types.games import GameSpec, Pieces, Standing, ranked, standing_of
from unstable.types.training import Sealed, Unwritable


class Brief(NamedTuple):
    """A game that is over, in short: what ratings and panes need to know, and its line."""

    spec: GameSpec
    outcomes: list[float]  # as GameResult has them, and so the next one
    forfeit: int | None
    truncated: bool
    turns: int
    moves: int  # of trained seats, the opening's left out
    legal_moves: int
    line: Pieces | Unwritable

    @property
    def ranked_outcomes(self) -> list[float]:
        """Outcomes by seat for comparing only."""
        return ranked(self.spec, self.outcomes, self.forfeit)

    @property
    def ended_in_opening(self) -> bool:
        """Whether it was over before any seat's own player had a turn."""
        return self.spec.opening > 0 and self.turns <= self.spec.opening

    def standing(self, seat: int) -> Standing:
        """How a seat and its team did."""
        return standing_of(self.spec, self.ranked_outcomes, seat)


class Finished(NamedTuple):
    """A training game that is over, its branches with it, and what was sampled in them."""

    game: Brief
    branches: list[Brief]
    trajectories: list[Sealed]

    @property
    def spec(self) -> GameSpec:
        """What was decided on."""
        return self.game.spec

    @property
    def games(self) -> list[Brief]:
        """The game and its branches."""
        return [self.game, *self.branches]

    @property
    def num_samples(self) -> int:
        """Samples of all its trajectories."""
        return sum(each.num_samples for each in self.trajectories)
