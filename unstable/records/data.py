"""Run as data: metrics, games and turns as pandas or polars frames."""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np

from unstable.config import ConfigError
from unstable.records.folder import GameFile, RunFolder
from unstable.records.games import answer_tokens
from unstable.records.reading import Row, Skipped, read_records, read_rows
from unstable.records.scan import TrainedAdvantage, read_advantages, scan_games
from unstable.types import RecordedGame

Library = Literal["pandas", "polars"]
LIBRARIES: tuple[Library, ...] = ("pandas", "polars")
GAME_COLUMNS = (
    *("game", "purpose", "env", "seed", "version", "actor", "member", "branches", "fork"),
    *("opening", "players", "payoffs", "stakes", "outcomes", "forfeit", "raised", "truncated"),
    *("reason", "seconds"),
)
"""Columns of the frame of games, whose key is `purpose`, `version` and `game`."""
TURN_COLUMNS = (
    *("seat", "index", "player", "observation", "text", "action", "formatted", "invalid"),
    *("seconds", "cut_characters", "votes", "temperature", "finish_reason", "version"),
    *("prompt_cut", "prompt_ids", "token_ids", "logprobs", "top_logprobs"),
)
"""Columns of the frame of turns that come from files; `TURN_KEYS` precede them, and derived
columns (`update`, `advantage`, `outcome`, `reward`, `reward/<term>`) follow."""
TURN_KEYS = ("purpose", "game_version", "game", "env")


class RunData:
    """Run as frames, each read at its first use and then kept.

    Columns are explained in docs/metrics.md. `turns` is the large frame. Damaged records in the
    files are left out, with a warning.
    """

    def __init__(self, folder: RunFolder, library: Library) -> None:
        self.folder = folder
        self._library = library

    @cached_property
    def metrics(self) -> Any:
        """Frame with one row per update and one column per metric."""
        with _warning() as skipped:
            rows = read_rows(self.folder.metrics, skipped)
        return self._frame(rows, dict.fromkeys(name for row in rows for name in row))

    @cached_property
    def games(self) -> Any:
        """Frame with one row per recorded game."""
        with _warning() as skipped:
            rows = [_game(game) for _, game in scan_games(self.folder, skipped)]
        return self._frame(rows, GAME_COLUMNS)

    @cached_property
    def turns(self) -> Any:
        """Frame with one row per turn of a recorded game; ids and log-probabilities are arrays."""
        with _warning() as skipped:
            advantages = read_advantages(self.folder, skipped=skipped)
            rows = [
                row
                for file in self.folder.game_files()
                for record in read_records(file.path, RecordedGame, skipped)
                for row in _turns(file, record, advantages)
            ]
        terms = sorted({name for row in rows for name in row if name.startswith("reward/")})
        behind = ("update", "advantage", "outcome", "reward", *terms)
        return self._frame(rows, (*TURN_KEYS, *TURN_COLUMNS, *behind))

    def _frame(self, rows: list[Row], names: Iterable[str]) -> Any:
        columns = {name: [row.get(name) for row in rows] for name in names}
        library = import_module(self._library)  # slow: takes seconds
        if self._library == "polars":
            return library.DataFrame(columns, strict=False)
        return library.DataFrame(columns)


@contextmanager
def _warning() -> Iterator[Skipped]:
    """Collect damaged records, and warn of them in one line."""
    skipped = Skipped()
    yield skipped
    if skipped:
        warnings.warn(skipped.line, stacklevel=4)


def _columns(values: object, names: Iterable[str]) -> Row:
    return {name: getattr(values, name) for name in names if hasattr(values, name)}


def _game(game: RecordedGame) -> Row:
    row = _columns(game.spec, GAME_COLUMNS) | _columns(game, GAME_COLUMNS)
    players = [seat.player.name for seat in game.spec.seats]
    return {**row, "game": game.spec.game_id, "branches": game.spec.branches, "players": players}


def _turns(
    file: GameFile, game: RecordedGame, advantages: dict[tuple[int, int], TrainedAdvantage]
) -> Iterable[Row]:
    for turn in game.turns:
        sampled, tokens = turn.answer.sampled, answer_tokens(turn.answer.sampled)
        row: Row = {"prompt_cut": 0}
        for values in (turn.answer, turn, sampled):
            row |= _columns(values, TURN_COLUMNS)
        row |= tokens._asdict()
        row["player"] = turn.player.name
        prompt_ids = [] if sampled is None else sampled.prompt_ids
        row["prompt_ids"] = np.asarray(prompt_ids, dtype=np.int32)
        row["token_ids"] = np.asarray(tokens.token_ids, dtype=np.int32)
        row["logprobs"] = np.asarray(tokens.logprobs, dtype=np.float64)  # NaN for inserted tokens
        row |= {"purpose": file.purpose, "game_version": game.version}
        row |= {"game": game.spec.game_id, "env": game.spec.env}
        row["outcome"] = game.outcomes[turn.seat]
        if turn.rewards is not None:
            row["reward"] = sum(value.weighted for value in turn.rewards.values())
            row |= {f"reward/{term}": value.raw for term, value in turn.rewards.items()}
        if file.purpose == "train" and (game.spec.game_id, turn.index) in advantages:
            found = advantages[game.spec.game_id, turn.index]
            row |= {"update": found.update, "advantage": found.value}
        yield row


def read(run: str | Path | RunFolder, frames: Library | None = None) -> RunData:
    """Return a run's metrics, games and turns as frames of pandas or polars, read on first use.

    `frames` None takes pandas if it is installed, else polars. Raises `ConfigError` for a folder
    that holds no run, and if neither library is installed.

    >>> read("outputs/my-run").metrics["learn/entropy"]  # doctest: +SKIP
    """
    folder = run if isinstance(run, RunFolder) else RunFolder(Path(run).expanduser())
    if not folder.metrics.is_file() and not folder.game_files():
        raise ConfigError(
            f"run = {str(folder.root)!r}: contains no metrics and no games; give a run folder"
        )
    asked = LIBRARIES if frames is None else (frames,)
    for library in asked:
        if library not in LIBRARIES:
            raise ConfigError(f"frames = {library!r}: unknown; use {' or '.join(LIBRARIES)}")
        if find_spec(library) is not None:
            return RunData(folder, library)
    raise ConfigError(
        f"frames = {frames}: {' and '.join(asked)} not installed; run pip install {asked[0]}"
    )
