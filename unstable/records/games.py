"""Recorded games: each line is a `types.RecordedGame` as JSON, without its branches."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from unstable.config import FORMAT, ConfigError
from unstable.records.files import json_lines, json_parts
from unstable.records.reading import DamagedError, Skipped, as_record, placed_records
from unstable.records.shapes import sample_records
from unstable.types import (
    Batch,
    Completion,
    GameResult,
    RecordedGame,
    SampledTokens,
    TopLogprobs,
    Trajectory,
)


def game_body(result: GameResult, trajectories: Sequence[Trajectory] = ()) -> bytes:
    """Return a finished game's line without the start that only the loop knows; see `game_line`.

    Actors call it; rewards of trained turns are stored in the turns. Raises `ValueError` for a
    number that is not finite.
    """
    for each in trajectories:
        for sample in each.samples:
            result.turns[sample.turn].rewards = each.rewards | sample.rewards
    (body,) = json_parts([replace(result, branches=[]) if result.branches else result])
    return body


def game_line(body: bytes, version: int, actor: int | None) -> bytes:
    """Return the line of a game's body; raises `ValueError` if it does not make one line.

    `hide_in_lines` must then remove secrets unknown to the process that made the body.
    """
    by = b"null" if actor is None else b"%d" % actor
    line = b'{"format":%d,"version":%d,"actor":%b,%b\n' % (FORMAT, version, by, body[1:])
    if body[:1] != b"{" or line.find(b"\n") != len(line) - 1:
        raise ValueError("a game's body must be a single line")
    return line


def read_game(place: str, row: dict[str, Any]) -> RecordedGame:
    """Return the game of a line's values; raises `ConfigError`, with its place, if invalid."""
    if "turns" not in row:
        raise ConfigError(f"{place}: not a recorded game; give games/train-*.jsonl of a run")
    try:
        return as_record(row, RecordedGame)
    except DamagedError as error:
        raise ConfigError(f"{place}: invalid record of a game ({error}); remove it") from None


class AnswerTokens(NamedTuple):
    """All tokens of a recorded answer; inserted tokens have the log-probability None."""

    token_ids: list[int]
    logprobs: list[float | None]
    top_logprobs: TopLogprobs | None  # per token, [] if inserted; None: not recorded
    finish_reason: str | None  # finish reason of the last completion


def answer_tokens(sampled: SampledTokens | None) -> AnswerTokens:
    """Return the tokens of all segments, concatenated; without any if `sampled` is None."""
    token_ids: list[int] = []
    logprobs: list[float | None] = []
    top_logprobs: TopLogprobs = []
    finish_reason = None
    for segment in () if sampled is None else sampled.segments:
        number = len(segment.token_ids)
        token_ids += segment.token_ids
        if isinstance(segment, Completion):
            logprobs += segment.logprobs
            top_logprobs += segment.top_logprobs or [[]] * number
            finish_reason = segment.finish_reason
        else:
            logprobs += [None] * number
            top_logprobs += [[]] * number
    return AnswerTokens(
        token_ids, logprobs, top_logprobs if any(top_logprobs) else None, finish_reason
    )


def read_games(path: Path, skipped: Skipped, start: int = 0) -> Iterator[RecordedGame]:
    """Yield the games of a training file from byte `start` on, each with its branches.

    A game with missing branches is left out, as when the run ended during their writing or they are
    damaged; so are branches of a damaged game. Raises `ConfigError` for another format.
    """
    for _, recorded in placed_games(path, skipped, start):
        yield recorded


def placed_games(
    path: Path, skipped: Skipped, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, RecordedGame]]:
    """Yield games as `read_games` does, each with its byte offset, if that is below `end`.

    Only one game is in memory at a time.
    """
    rows = placed_records(path, RecordedGame, skipped, start, end)
    yield from _with_branches(rows, is_branching=_has_branches(path))


def read_game_with_branches(path: Path, place: int) -> RecordedGame:
    """Return the game at an offset from `placed_games`; `ConfigError` if the file has changed."""
    rows = placed_records(path, RecordedGame, Skipped(), place)
    for at, recorded in _with_branches(rows, is_branching=False):
        if at == place:
            return recorded
        break
    raise ConfigError(f"{path}: file changed during reading; run the command again")


_BRANCHES = re.compile(rb'"branches":\s*[1-9]')  # texts cannot match: their quotes are escaped


def _has_branches(path: Path) -> bool:
    """Return whether a game of the file was forked, so that a member of a group is a branch."""
    if not path.is_file():
        return False
    with path.open("rb") as lines:
        return any(map(_BRANCHES.search, lines))


def _with_branches(
    rows: Iterator[tuple[int, RecordedGame]], *, is_branching: bool
) -> Iterator[tuple[int, RecordedGame]]:
    ahead = next(rows, None)
    while ahead is not None:
        place, result = ahead
        branches: list[GameResult] = []
        last = result.spec.game_id + result.spec.branches
        ahead = None
        while len(branches) < result.spec.branches and (ahead := next(rows, None)) is not None:
            if not result.spec.game_id < ahead[1].spec.game_id <= last:
                break
            branches.append(ahead[1])
            ahead = None
        is_whole = len(branches) in (0, result.spec.branches)  # 0: ended before its fork
        if is_whole and not (is_branching and result.spec.member):
            result.branches = branches
            yield place, result
        ahead = next(rows, None) if ahead is None else ahead


def sample_lines(batch: Batch, advantages: Sequence[float]) -> bytes:
    """Return a batch's samples as lines; raises `ValueError` for a number that is not finite."""
    return json_lines(sample_records(batch, advantages))
