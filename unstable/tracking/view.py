"""Content of a live display as one value, and the figures derived from it."""

import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

from pydantic import InstanceOf, TypeAdapter

from unstable.config import RunConfig, hide_secrets
from unstable.records.reading import parse_record
from unstable.records.summary import RunSummary
from unstable.tracking.metrics import Row, current_policy
from unstable.types import GameResult, PlayedGame, PlayerId, RecordedGame
from unstable.types.play import opponents

RECENT_GAMES = 200
HISTORY = 200
MOST_MOVES, MOST_CHARACTERS, MOST_BOARD = 200, 200, 8000
"""Limits of the last game: moves, characters of each, and characters of the last observation."""


class Phase(NamedTuple):
    """Part of a run and its progress: Phase("playing", done=40, total=128, started=12.5)"""

    name: str
    done: float
    total: float | None
    started: float  # seconds of the view's clock


class RecentGame(NamedTuple):
    """Finished training game as the panes count it."""

    opponents: list[str]
    players: set[PlayerId]  # at seats that are not trained
    standings: list[str]  # of the trained sides
    forfeited: bool  # by a trained side
    moves: int  # of the trained seats
    legal_moves: int
    finished: float  # seconds of the view's clock

    @classmethod
    def of(cls, game: PlayedGame, finished: float) -> "RecentGame":
        """Return the figures of a game that panes count."""
        seats, sides = game.spec.seats, game.spec.trained_sides
        ours = [seat for side in sides for seat in side]
        return cls(
            opponents=opponents(game.spec),
            players={spec.player for seat, spec in enumerate(seats) if seat not in ours},
            standings=[game.standing(side[0]) for side in sides],
            forfeited=game.forfeit in ours,
            moves=game.moves,
            legal_moves=game.legal_moves,
            finished=finished,
        )


class LastGame(NamedTuple):
    """Finished game as its pane shows it."""

    env: str
    sides: list[tuple[list[int], str, float]]  # seats, player, outcome
    moves: list[tuple[int, str, bool]]  # seat, action, whether it was invalid
    forfeit: int | None
    board: str  # the observation before the last move

    @classmethod
    def of(cls, result: GameResult, request: str) -> "LastGame":
        """Return as much of a game as fits any screen, without `request`, the prompts' end."""
        seats, turns = result.spec.seats, result.turns
        seen = turns[-1].answer.observation.removesuffix(request) if turns else ""
        return cls(
            env=result.spec.env,
            sides=[
                (list(side), seats[side[0]].player.name, result.outcomes[side[0]])
                for side in result.spec.sides
            ],
            moves=[
                (turn.seat, hide_secrets(turn.answer.action)[:MOST_CHARACTERS], turn.invalid)
                for turn in turns[-MOST_MOVES:]
            ],
            forfeit=result.forfeit,
            board=hide_secrets(seen).rstrip()[-MOST_BOARD:],
        )


@dataclass
class RunView:
    """Content of the panes. Another thread reads it: fields are replaced, never changed in place.

    Times are in seconds of `clock`.
    """

    config: RunConfig
    name: str
    device: str
    started: float
    row_started: float  # start of the current update
    phase: Phase
    clock: Callable[[], float] = time.monotonic
    summary: InstanceOf[RunSummary] = field(default_factory=RunSummary)
    """Summary of the rows and ratings so far; it holds the newest HISTORY rows."""
    games: int = 0
    failures: int = 0
    recent: tuple[RecentGame, ...] = ()  # the newest RECENT_GAMES
    last_game: LastGame | None = None
    # In the run's own process, the display derives the two fields above from the next three.
    ended: tuple[tuple[Any, float], ...] = ()  # PlayedGames with their finish times
    last_line: bytes | None = None
    requests: Mapping[str, str] = field(default_factory=dict)  # end of each prompt, by game
    engine: Row = field(default_factory=dict)
    actors: Mapping[int, Row] = field(default_factory=dict)  # `engine`, by actor
    machine: Mapping[str, float] = field(default_factory=dict)  # utilization
    buffer: Row = field(default_factory=dict)
    notice: str = ""
    alarm: str = ""  # the guard's newest
    alarms: int = 0

    @property
    def version(self) -> int:
        """Newest version that has a row."""
        return self.summary.version

    def add_row(self, row: Row) -> None:
        """Add a row of metrics."""
        self.summary = self.summary.plus(row, HISTORY)

    def record(self) -> dict[str, Any]:
        """Return JSON values of all but the config and the summary, which have their own files."""
        self.last_game = self.newest_game()
        self.refresh()
        text = _adapter().dump_json(self, exclude=_OWN)
        return {"now": self.clock(), **json.loads(text)}  # non-finite numbers are null

    @classmethod
    def read(
        cls,
        record: Mapping[str, Any],
        config: RunConfig,
        summary: RunSummary,
        seconds: Callable[[], float],
    ) -> "RunView":
        """Return the view that `record` made `seconds` ago; raises `ValueError` if invalid."""
        now = record.get("now") if isinstance(record, Mapping) else None
        if not isinstance(now, float | int):
            raise ValueError("`now` is missing")
        own = {"config": config, "summary": summary, "clock": lambda: now + seconds()}
        return _adapter().validate_python({**record, **own})

    def newest_game(self) -> LastGame | None:
        """Return the newest training game; None if there is none."""
        if self.last_line is None:
            return self.last_game
        game = parse_record(self.last_line, RecordedGame, "a line")
        return LastGame.of(game, self.requests.get(game.spec.env, ""))

    def refresh(self) -> None:
        """Update `recent` from `ended`."""
        if ended := self.ended:
            self.recent = tuple(RecentGame.of(game, finished) for game, finished in ended)

    def add_games(self, games: Sequence[PlayedGame], last_line: bytes | None) -> None:
        """Add finished training games, and the line of the last one, if it has one."""
        now = self.clock()
        self.games += len(games)
        newest = [(game, now) for game in games if not game.ended_in_opening]
        self.ended = (*self.ended, *newest)[-RECENT_GAMES:]
        self.last_line = last_line or self.last_line

    def results(self) -> dict[str, Counter[str]]:
        """Return the policy's results in recent games, by opponent."""
        results: dict[str, Counter[str]] = {}
        for played in self.recent:
            for opponent in played.opponents:
                counts = results.setdefault(opponent, Counter())
                counts["games"] += 1
                counts.update(played.standings)
        return results

    def opponent_shares(self) -> dict[PlayerId, float]:
        """Return the share of recent games by opponent; in self-play the opponent is the policy."""
        if not self.recent:
            return {}
        games = Counter(player for played in self.recent for player in played.players)
        itself = current_policy(self.summary.ratings)
        if itself is not None:
            games[itself] += sum("self" in played.opponents for played in self.recent)
        return {player: count / len(self.recent) for player, count in games.items()}

    def legal_moves(self) -> float | None:
        """Return the share of the policy's recent moves that were legal; None without moves."""
        moves = sum(played.moves for played in self.recent)
        return sum(played.legal_moves for played in self.recent) / moves if moves else None

    def forfeits(self) -> float | None:
        """Return the share of recent games that the policy forfeited; None without games."""
        if not self.recent:
            return None
        return sum(played.forfeited for played in self.recent) / len(self.recent)

    def seconds_left(self, now: float) -> float | None:
        """Return the seconds until the last update, by the mean of the newest 8; None at first."""
        config = self.config.loop
        taken = [row.get("time/total") for row in self.summary.rows if row["version"]]
        times = [seconds for seconds in taken if seconds is not None][-8:]
        if not times:
            return None
        left = (config.steps - self.version) * sum(times) / len(times)
        left -= now - self.row_started
        if config.max_time is not None:
            left = min(left, config.max_time - (now - self.started))
        return max(left, 0.0)


_OWN = {"config", "summary", "clock", "ended", "last_line", "requests"}
"""Fields that `record` leaves out."""


@cache
def _adapter() -> TypeAdapter[RunView]:
    return TypeAdapter(RunView)
