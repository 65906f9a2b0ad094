"""What has ended where it was played, as the loop takes it in: short, tallied, samples sealed.

An actor makes it in its own process; the loop makes it of a run's files where that goes on.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from unstable.config.plugins import faults_to
from unstable.league.guard import TrainingGames
from unstable.records.games import line_pieces
from unstable.tracking.play import PlayTally
from unstable.types import (
    Brief,
    Finished,
    GameFailure,
    GameResult,
    Pieces,
    Sealed,
    Trajectory,
    Unwritable,
)
from unstable.types.tallies import Asked

Judged = tuple[GameResult, list[Trajectory]]


class Ended(NamedTuple):
    """Training games that have ended, in this order, and what they say together."""

    games: list[Finished | GameFailure]
    play: PlayTally
    results: TrainingGames

    @property
    def finished(self) -> list[Finished]:
        """Those that did not fail."""
        return [each for each in self.games if isinstance(each, Finished)]

    @classmethod
    def of(
        cls, judged: Iterable[Judged | GameFailure | Asked], *, on_file: bool = False
    ) -> "Ended":
        """Games with their trajectories; `on_file`: their lines are written already."""
        ended = cls([], PlayTally.empty(), TrainingGames())
        ended.add(judged, on_file=on_file)
        return ended

    def add(self, judged: Iterable[Judged | GameFailure | Asked], *, on_file: bool = False) -> None:
        """Take in more of them."""
        for each in judged:
            if isinstance(each, Asked):
                self.play.add_asked(each)
                continue
            if isinstance(each, GameFailure):
                self.games.append(each)
                continue
            result, trajectories = each
            briefs = []
            for game in result.games:
                own = [t for t in trajectories if t.game_id == game.spec.game_id]
                self.play.add_game(game, own)
                briefs.append(_brief(game, Unwritable("") if on_file else _line(game, own)))
            self.results.add(result)
            self.games.append(Finished(briefs[0], briefs[1:], list(map(Sealed.of, trajectories))))


def _brief(game: GameResult, line: Pieces | Unwritable) -> Brief:
    seats = game.spec.seats
    moves = [t for t in game.turns if t.index >= game.spec.opening and seats[t.seat].trained]
    return Brief(
        spec=game.spec,
        outcomes=game.outcomes,
        forfeit=game.forfeit,
        truncated=game.truncated,
        turns=len(game.turns),
        moves=len(moves),
        legal_moves=sum(not turn.invalid for turn in moves),
        line=line,
    )


def _line(game: GameResult, trajectories: Sequence[Trajectory]) -> Pieces | Unwritable:
    """What cannot be made costs a line and no game."""
    faults: list[BaseException] = []
    with faults_to(faults.append):
        return line_pieces(game, trajectories)
    return Unwritable(str(faults[0]))
