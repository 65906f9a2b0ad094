"""Training games as an actor hands them to the loop: what counts of them, and samples packed."""

from msgspec import Struct

from unstable.types.games import GameResult, GameSpec, Standing, ranked, standing_of
from unstable.types.training import PackedTrajectory, Unwritable


class PlayedGame(Struct):
    """A finished training game: its result, its line, and its packed trajectories."""

    spec: GameSpec
    outcomes: list[float]  # as GameResult has them, and so the next one
    forfeit: int | None
    truncated: bool
    turns: int
    moves: int  # of trained seats, the opening's left out
    legal_moves: int
    line: bytes | Unwritable  # as `records.games.game_body` makes it
    branches: list["PlayedGame"] = []
    trajectories: list[PackedTrajectory] = []  # its branches' too

    @classmethod
    def of(cls, game: GameResult, line: bytes | Unwritable) -> "PlayedGame":
        """Summarize a game, without its branches and trajectories."""
        seats = game.spec.seats
        moves = [t for t in game.turns if t.index >= game.spec.opening and seats[t.seat].trained]
        legal_moves = sum(not turn.invalid for turn in moves)
        result = game.outcomes, game.forfeit, game.truncated
        return cls(game.spec, *result, len(game.turns), len(moves), legal_moves, line)

    @property
    def ranked_outcomes(self) -> list[float]:
        """Outcomes by seat for comparing only."""
        return ranked(self.spec, self.outcomes, self.forfeit)

    @property
    def ended_in_opening(self) -> bool:
        """The game was over before any seat's own player had a turn."""
        return self.spec.opening > 0 and self.turns <= self.spec.opening

    def standing(self, seat: int) -> Standing:
        """Return the standing of a seat and its team."""
        return standing_of(self.spec, self.ranked_outcomes, seat)

    @property
    def games(self) -> list["PlayedGame"]:
        """The game and its branches."""
        return [self, *self.branches]

    @property
    def num_samples(self) -> int:
        """Samples of all its trajectories."""
        return sum(each.num_samples for each in self.trajectories)
