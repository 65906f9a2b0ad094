"""What is shown while a run goes on, as one value, and the numbers that follow from it."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from unstable.config import RunConfig
from unstable.tracking.metrics import Row, current_policy, opponents
from unstable.types import EvalScore, Exploitability, GameResult, PlayerId, Rating

RECENT_GAMES = 200
HISTORY = 200


class Phase(NamedTuple):
    """What the run is at, and how far. Phase("playing", done=40, total=128, started=12.5)"""

    name: str
    done: float
    total: float | None
    started: float  # of the monotonic clock, in seconds


class Played(NamedTuple):
    """A finished training game as the panes count it."""

    opponents: list[str]
    players: set[PlayerId]  # those that are not trained
    standings: list[str]  # of the trained seats
    forfeited: bool  # by a trained seat
    moves: int  # of the trained seats
    legal_moves: int
    finished: float  # of the monotonic clock, in seconds

    @classmethod
    def of(cls, result: GameResult) -> "Played":
        """What the panes count of a finished game."""
        seats = result.spec.seats
        trained = [seat for seat, spec in enumerate(seats) if spec.trained]
        moves = [turn for seat in trained for turn in result.seat_turns(seat)]
        return cls(
            opponents=opponents(result),
            players={seat.player for seat in seats if not seat.trained},
            standings=[result.standing(seat) for seat in trained],
            forfeited=result.forfeit in trained,
            moves=len(moves),
            legal_moves=sum(not turn.invalid for turn in moves),
            finished=time.monotonic(),
        )


@dataclass
class View:
    """What the panes show. Another thread reads it: fields are replaced, never changed in place."""

    config: RunConfig
    name: str
    device: str
    started: float  # of the monotonic clock, in seconds
    row_started: float  # likewise, of the update that is under way
    phase: Phase
    version: int = 0
    games: int = 0
    failures: int = 0
    recent: tuple[Played, ...] = ()  # the newest RECENT_GAMES
    last_game: GameResult | None = None
    engine: Row = field(default_factory=dict)
    buffer: Row = field(default_factory=dict)
    rows: tuple[Row, ...] = ()  # the newest HISTORY rows of metrics.jsonl
    ratings: tuple[Rating, ...] = ()
    scores: tuple[EvalScore, ...] = ()  # newest evaluation first
    exploitability: Mapping[str, Exploitability] = field(default_factory=dict)  # newest, by env
    notice: str = ""
    alarm: str = ""  # the newest one of the guard

    def add_game(self, result: GameResult) -> None:
        """Takes in a finished training game."""
        self.games += 1
        if not result.ended_in_opening:
            self.recent = (*self.recent, Played.of(result))[-RECENT_GAMES:]
        self.last_game = result

    def results(self) -> dict[str, Counter[str]]:
        """How the policy did in recent games, by what it played against."""
        results: dict[str, Counter[str]] = {}
        for played in self.recent:
            for opponent in played.opponents:
                counts = results.setdefault(opponent, Counter())
                counts["games"] += 1
                counts["forfeit"] += played.forfeited
                counts.update(played.standings)
        return results

    def frequencies(self) -> dict[PlayerId, float]:
        """Share of recent games in which a player was the opponent; the policy is its own."""
        if not self.recent:
            return {}
        games = Counter(player for played in self.recent for player in played.players)
        itself = current_policy(self.ratings)
        if itself is not None:
            games[itself] += sum("self" in played.opponents for played in self.recent)
        return {player: count / len(self.recent) for player, count in games.items()}

    def legal_moves(self) -> float | None:
        """Share of the policy's recent moves that the env accepted."""
        moves = sum(played.moves for played in self.recent)
        return sum(played.legal_moves for played in self.recent) / moves if moves else None

    def forfeits(self) -> float | None:
        """Share of recent games that the policy forfeited."""
        if not self.recent:
            return None
        return sum(played.forfeited for played in self.recent) / len(self.recent)

    def series(self, name: str) -> list[float | None]:
        """A metric over the updates, oldest first."""
        return [row.get(name) for row in self.rows]

    def seconds_left(self, now: float) -> float | None:
        """Until the last update, by the mean of the last eight; None before there is one."""
        config = self.config.loop
        times = [row["time/total"] or 0.0 for row in self.rows if row["version"]][-8:]
        if not times:
            return None
        left = (config.steps - self.version) * sum(times) / len(times)
        left -= now - self.row_started
        if config.max_time is not None:
            left = min(left, config.max_time - (now - self.started))
        return max(left, 0.0)
