"""Finished games: passed to metrics, view and files, with a line of advice if one is due."""

import logging
from collections.abc import Sequence

from unstable.config import RunConfig
from unstable.records.files import hide_in_lines
from unstable.records.games import game_body, game_line
from unstable.records.reading import parse_record
from unstable.tracking.advice import Capped, Illegal
from unstable.tracking.display import Display
from unstable.tracking.recording import Recording
from unstable.tracking.sinks.base import takes_lines, wants_records
from unstable.tracking.sinks.files import GameFiles
from unstable.types import GameFailure, GameResult, PlayedGame, Purpose, RecordedGame, Unwritable
from unstable.types.play import PlayTally

logger = logging.getLogger(__name__)


class GameLog:
    """Distributor of games to sinks and panes; parses a line again only if one needs a record."""

    def __init__(self, config: RunConfig, recording: Recording, display: Display) -> None:
        self._recording, self._display = recording, display
        self._view, self._border = display.view, display.border
        self._capped, self._illegal = Capped(config), Illegal(config)

    def add(
        self, finished: Sequence[PlayedGame], tally: PlayTally, version: int, actor: int
    ) -> None:
        """Add training games that finished while `version` was current, and their tally."""
        self._recording.play.tally.add(tally)
        games = [game for each in finished for game in each.games]
        lines = self._written([game.line for game in games], "train", version, actor)
        self._view.add_games(games, lines[-1] if lines else None)
        for each in finished:
            self._look_at_end(each.games)
        if any(self._illegal.wants(game.spec.env) for game in games):
            found = (
                self._illegal.add(parse_record(line, RecordedGame, "a line")) for line in lines
            )
            for line in filter(None, found):
                self._display.print(line)

    def add_again(self, finished: Sequence[PlayedGame], tally: PlayTally) -> None:
        """Add recorded training games from before the run was resumed."""
        self._recording.play.tally.add(tally)
        self._view.add_games([game for each in finished for game in each.games], None)

    def add_evaluated(self, result: GameResult, version: int) -> None:
        """Add a game of the evaluation of `version`."""
        self._look_at_end(result.games)

        def write() -> None:
            self._written([game_body(result)], result.spec.purpose, version, None)

        self._border(GameFiles.name, write)

    def add_failure(self, failure: GameFailure) -> None:
        """Count and log a game that raised an error."""
        spec = failure.spec
        self._recording.play.tally.add_count("collect/failures")
        self._view.failures += 1
        logger.error(
            "%s game %d of %s failed: %s\n%s",
            spec.purpose,
            spec.game_id,
            spec.env,
            failure.error,
            failure.traceback,
        )

    def _look_at_end(self, games: Sequence[PlayedGame | GameResult]) -> None:
        if (line := self._capped.add(games)) is not None:
            self._display.warn(line)

    def _written(
        self,
        made: Sequence[bytes | Unwritable],
        purpose: Purpose,
        version: int,
        actor: int | None,
    ) -> list[bytes]:
        """Write the lines of games that ended together; returns the lines that could be made."""
        lines: list[bytes] = []
        for line in made:
            try:
                if isinstance(line, Unwritable):
                    line.complain()
                else:
                    lines.append(game_line(line, version, actor))
            except ValueError as error:
                self._border(GameFiles.name, Unwritable(str(error)).complain)
        lines = hide_in_lines(lines)
        sinks = self._recording.sinks
        wanting = [sink for sink in sinks if takes_lines(sink)]
        self._border.emit(wanting, "game_lines", version, purpose, lines)
        if wants_records(sinks, "game"):
            for each in lines:
                record = parse_record(each, RecordedGame, "a line")
                self._border.emit(sinks, "game", version, record)
        return lines
