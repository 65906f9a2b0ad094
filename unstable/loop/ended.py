"""Finished training games as an actor sends them: summarized, tallied, samples packed.

An actor creates `Ended` in its own process; the loop creates it from a run's files on a resume.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from unstable.records.games import game_body
from unstable.types import (
    GameFailure,
    GameResult,
    PackedTrajectory,
    PlayedGame,
    Trajectory,
    Unwritable,
)
from unstable.types.play import PlayTally
from unstable.types.tallies import TermCalls

Judged = tuple[GameResult, list[Trajectory]]


class Ended(NamedTuple):
    """Training games that have ended, in order, with their tally."""

    games: list[PlayedGame | GameFailure]
    play: PlayTally

    @property
    def finished(self) -> list[PlayedGame]:
        """Games that did not fail."""
        return [each for each in self.games if isinstance(each, PlayedGame)]

    @classmethod
    def of(
        cls, judged: Iterable[Judged | GameFailure | TermCalls], *, on_file: bool = False
    ) -> "Ended":
        """Return games with their trajectories; if `on_file`, their lines are written already."""
        ended = cls([], PlayTally.empty())
        ended.add(judged, on_file=on_file)
        return ended

    def add(
        self, judged: Iterable[Judged | GameFailure | TermCalls], *, on_file: bool = False
    ) -> None:
        """Add judged games, failures and tallies of reward-term calls."""
        for each in judged:
            if isinstance(each, TermCalls):
                self.play.add_asked(each)
                continue
            if isinstance(each, GameFailure):
                self.games.append(each)
                continue
            result, trajectories = each
            played = []
            for game in result.games:
                own = [t for t in trajectories if t.game_id == game.spec.game_id]
                self.play.add_game(game, own)
                line = Unwritable("") if on_file else _line(game, own)
                played.append(PlayedGame.of(game, line))
            played[0].branches = played[1:]
            played[0].trajectories = list(map(PackedTrajectory.of, trajectories))
            self.games.append(played[0])


def _line(game: GameResult, trajectories: Sequence[Trajectory]) -> bytes | Unwritable:
    """Return a game's line; `Unwritable` if it cannot be encoded, so the game is not lost."""
    try:
        return game_body(game, trajectories)
    except ValueError as error:
        return Unwritable(str(error))
