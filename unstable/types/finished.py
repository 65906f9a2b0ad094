"""Training games as an actor sends them to the loop: summarized, with packed samples."""

from msgspec import Struct

from unstable.types.games import GameResult, GameSpec, Standing, ranked, standing_of
from unstable.types.training import PackedTrajectory, Unwritable


class PlayedGame(Struct):
    """A finished training game: its result, its line, and its packed trajectories."""

    spec: GameSpec
    outcomes: list[float]  # as in GameResult
    forfeit: int | None  # as in GameResult
    truncated: bool
    turns: int
    moves: int  # number of moves of trained seats, without the opening
    legal_moves: int
    line: bytes | Unwritable  # made by `records.games.game_body`
    branches: list["PlayedGame"] = []
    trajectories: list[PackedTrajectory] = []  # including its branches'

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
        """Outcomes by seat, adjusted for comparisons by `ranked`."""
        return ranked(self.spec, self.outcomes, self.forfeit)

    @property
    def ended_in_opening(self) -> bool:
        """True if the game ended before any seat's own player had a turn."""
        return self.spec.opening > 0 and self.turns <= self.spec.opening

    def standing(self, seat: int) -> Standing:
        """Return the standing of a seat's team."""
        return standing_of(self.spec, self.ranked_outcomes, seat)

    @property
    def games(self) -> list["PlayedGame"]:
        """The game and its branches."""
        return [self, *self.branches]

    @property
    def num_samples(self) -> int:
        """Number of samples in all trajectories."""
        return sum(each.num_samples for each in self.trajectories)
