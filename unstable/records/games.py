"""What a line of the games' and samples' files holds: plain values, named as in `types`.

A turn's `sampled` has the tokens of a local model; it is null where none answered.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from unstable.config import FORMAT, ConfigError
from unstable.records.files import json_lines, json_parts
from unstable.records.reading import Skipped, placed_records
from unstable.records.shapes import GAME, SPEC, Record
from unstable.types import (
    Answer,
    Batch,
    Completion,
    GameResult,
    GameSpec,
    Move,
    Pieces,
    PlayerId,
    Reward,
    Sample,
    SampledTokens,
    SeatSpec,
    Segment,
    Trajectory,
    Turn,
)

SEAT_FIELDS = tuple(field.name for field in fields(SeatSpec) if field.name != "player")
ANSWER_FIELDS = tuple(
    field.name for field in fields(Answer) if field.name not in ("player", "sampled")
)
COMPLETION_FIELDS = tuple(field.name for field in fields(Completion) if field.name != "scored")
# Unlike `dataclasses.asdict`, whose copies of token lists would cost a millisecond a game.
_SEAT_VALUES, _ANSWER_VALUES, _COMPLETION_VALUES = (
    attrgetter(*names) for names in (SEAT_FIELDS, ANSWER_FIELDS, COMPLETION_FIELDS)
)


def _rewards(owner: Trajectory, sample: Sample | None) -> dict[str, dict[str, float]]:
    """A turn's terms, and those that judge its whole trajectory, which stand on each turn."""
    rewards = owner.rewards | (sample.rewards if sample is not None else {})
    return {term: {"raw": raw, "weighted": weighted} for term, (raw, weighted) in rewards.items()}


def game_record(
    result: GameResult, trajectories: Sequence[Trajectory], version: int, actor: int | None
) -> Record:
    """A finished game; a turn's `rewards` are None where it was not trained on."""
    spec = result.spec
    rewards = {
        sample.turn: _rewards(each, sample) for each in trajectories for sample in each.samples
    }
    return {
        **spec_record(spec),
        "version": version,
        "actor": actor,
        "fork": result.fork,
        "players": [seat.player.name for seat in spec.seats],
        "payoffs": result.payoffs,
        "stakes": result.stakes,
        "outcomes": result.outcomes,
        "forfeit": result.forfeit,
        "raised": result.raised,
        "truncated": result.truncated,
        "reason": result.reason,
        "seconds": result.seconds,
        "turns": [_turn_record(turn, rewards.get(turn.index)) for turn in result.turns],
    }


def line_pieces(result: GameResult, trajectories: Sequence[Trajectory] = ()) -> Pieces:
    """A finished game's line, but for what only the loop knows: `whole_line` puts that between.

    Made where the game was played. Raises `ValueError` at a number that is not finite.
    """
    record = game_record(result, trajectories, 0, None)
    names = list(record)
    at = names.index("version")
    head = {"format": FORMAT} | {name: record[name] for name in names[:at]}
    first, second = json_parts([head, {name: record[name] for name in names[at + 2 :]}])
    return first[:-1] + b',"version":', b"," + second[1:] + b"\n"


def whole_line(pieces: Pieces, version: int, actor: int | None) -> bytes:
    """The line of `game_record`, of its pieces. Raises `ValueError` where they are no line.

    What this process keeps secret, and the one that made them does not, is for `hide_in_line`.
    """
    place = b"%d" % version, b"null" if actor is None else b"%d" % actor
    line = b'%b%b,"actor":%b%b' % (pieces[0], *place, pieces[1])
    if line.find(b"\n") != len(line) - 1:
        raise ValueError("the pieces of a game's line make more than one line, or none")
    return line


def spec_record(spec: GameSpec) -> Record:
    """A game as it was decided on."""
    return {
        "game": spec.game_id,
        "purpose": spec.purpose,
        "env": spec.env,
        "seed": spec.seed,
        "member": spec.member,
        "branches": spec.branches,
        "opening": spec.opening,
        "opener": None if spec.opener is None else _seat_record(spec.opener),
        "seats": [_seat_record(seat) for seat in spec.seats],
        "teams": [list(team) for team in spec.teams],
        **({"ensemble": [each.name for each in spec.ensemble]} if spec.ensemble else {}),
    }


def _seat_record(seat: SeatSpec) -> Record:
    values = zip(SEAT_FIELDS, _SEAT_VALUES(seat), strict=True)
    return {"player": seat.player.name, **dict(values)}


def _turn_record(turn: Turn, rewards: Record | None) -> Record:
    tokens = turn.answer.sampled
    return {
        "seat": turn.seat,
        "index": turn.index,
        "player": turn.player.name,
        **dict(zip(ANSWER_FIELDS, _ANSWER_VALUES(turn.answer), strict=True)),
        "invalid": turn.invalid,
        "seconds": turn.seconds,
        "rewards": rewards,
        "sampled": None if tokens is None else _sampled_record(tokens),
    }


def _sampled_record(tokens: SampledTokens) -> Record:
    """What a local model was given and what it sampled; inserted tokens have no `logprobs`."""
    return {
        "version": tokens.version,
        "temperature": tokens.temperature,
        "prompt_cut": tokens.prompt_cut,
        "prompt_ids": tokens.prompt_ids,
        "segments": [_segment_record(segment) for segment in tokens.segments],
        **({"moves": [list(move) for move in tokens.moves]} if tokens.moves else {}),
        **({"thought": tokens.thought} if tokens.thought else {}),
    }


def _segment_record(segment: Segment) -> Record:
    if not isinstance(segment, Completion):
        return {"token_ids": segment.token_ids}
    return dict(zip(COMPLETION_FIELDS, _COMPLETION_VALUES(segment), strict=True))


class AnswerTokens(NamedTuple):
    """All tokens of a recorded answer; those that were inserted have the logprob None."""

    token_ids: list[int]
    logprobs: list[float | None]
    top_logprobs: list[Any] | None  # by token, of inserted ones []; None: not recorded
    finish_reason: str | None  # of the last completion


def answer_tokens(sampled: Record | None) -> AnswerTokens:
    """The tokens of a turn's `sampled`, one segment after another; of None there are none."""
    token_ids: list[int] = []
    logprobs: list[float | None] = []
    top_logprobs: list[Any] = []
    finish_reason = None
    for segment in () if sampled is None else sampled["segments"]:
        number = len(segment["token_ids"])
        token_ids += segment["token_ids"]
        logprobs += segment.get("logprobs", [None] * number)
        top_logprobs += segment.get("top_logprobs") or [[]] * number
        finish_reason = segment.get("finish_reason", finish_reason)
    return AnswerTokens(
        token_ids, logprobs, top_logprobs if any(top_logprobs) else None, finish_reason
    )


def read_game(place: str, row: Record) -> GameResult:
    """What `game_record` wrote; raises `ConfigError`, with its place, for anything else."""
    if "turns" not in row:
        raise ConfigError(f"{place}: not a recorded game; give games/train-*.jsonl of a run")
    if problem := GAME.problem(row):
        raise ConfigError(f"{place}: not a whole record of a game ({problem})")
    return game_of(row)


def game_of(row: Record) -> GameResult:
    """The game of a record that has its shape."""
    return GameResult(
        spec=_spec(row),
        turns=[_read_turn(turn) for turn in row["turns"]],
        payoffs=row["payoffs"],
        outcomes=row["outcomes"],
        forfeit=row["forfeit"],
        raised=row["raised"],
        truncated=row["truncated"],
        reason=row["reason"],
        seconds=row["seconds"],
        stakes=row.get("stakes"),
        fork=row["fork"],
    )


def read_spec(row: Record) -> GameSpec:
    """What `spec_record` made; raises `ValueError` for anything else."""
    if problem := SPEC.problem(row):
        raise ValueError(problem)
    return _spec(row)


def _spec(row: Record) -> GameSpec:
    return GameSpec(
        game_id=row["game"],
        purpose=row["purpose"],
        env=row["env"],
        seed=row["seed"],
        seats=tuple(_read_seat(seat) for seat in row["seats"]),
        teams=tuple(map(tuple, row["teams"])),
        member=row["member"],
        branches=row["branches"],
        opening=row["opening"],
        opener=None if row["opener"] is None else _read_seat(row["opener"]),
        ensemble=tuple(map(PlayerId.parse, row.get("ensemble", ()))),
    )


def line_record(line: bytes) -> Record:
    """What `game_record` was, of the line that was made of it."""
    record: Record = json.loads(line)
    del record["format"]
    return record


class Recorded(NamedTuple):
    """A training game out of its file, its branches in it."""

    result: GameResult
    rewards: dict[tuple[int, int], dict[str, Reward]]  # of trained turns, by game and turn


def read_games(path: Path, skipped: Skipped, start: int = 0) -> Iterator[Recorded]:
    """The games of a training file from byte `start` on, each with its branches.

    One whose branches are not all there is left out: the run ended as they were written, or they
    are damaged, and so are branches of a game that is. Raises `ConfigError` for another format.
    """
    for _, recorded in placed_games(path, skipped, start):
        yield recorded


def placed_games(
    path: Path, skipped: Skipped, start: int = 0, end: int | None = None
) -> Iterator[tuple[int, Recorded]]:
    """The same, each with the byte at which it begins, of those that begin before byte `end`.

    One is in memory at a time.
    """
    rows = placed_records(path, GAME, skipped, start, end)
    yield from _with_branches(rows, is_branching=_has_branches(path))


def read_game_with_branches(path: Path, place: int) -> Recorded:
    """The game that begins at a byte where `placed_games` has found it."""
    rows = placed_records(path, GAME, Skipped(), place)
    for at, recorded in _with_branches(rows, is_branching=False):
        if at == place:
            return recorded
        break
    raise ConfigError(f"{path}: changed while it was read; begin again")


_BRANCHES = re.compile(rb'"branches":\s*[1-9]')  # in no text: its quotation marks are escaped


def _has_branches(path: Path) -> bool:
    """Whether a game of the file was forked, so that a member of a group is a branch."""
    if not path.is_file():
        return False
    with path.open("rb") as lines:
        return any(map(_BRANCHES.search, lines))


def _with_branches(
    rows: Iterator[tuple[int, Record]], *, is_branching: bool
) -> Iterator[tuple[int, Recorded]]:
    ahead = next(rows, None)
    while ahead is not None:
        place, parent = ahead
        branches: list[Record] = []
        result = game_of(parent)
        last = result.spec.game_id + result.spec.branches
        ahead = None
        while len(branches) < result.spec.branches and (ahead := next(rows, None)) is not None:
            if not result.spec.game_id < ahead[1]["game"] <= last:
                break
            branches.append(ahead[1])
            ahead = None
        is_whole = len(branches) in (0, result.spec.branches)  # one too short for its fork has none
        if is_whole and not (is_branching and result.spec.member):
            result.branches = [game_of(branch) for branch in branches]
            rewards = chain(*(_read_rewards(each) for each in (parent, *branches)))
            yield place, Recorded(result, dict(rewards))
        ahead = next(rows, None) if ahead is None else ahead


def _read_rewards(row: Record) -> Iterator[tuple[tuple[int, int], dict[str, Reward]]]:
    for turn in row["turns"]:
        if turn["rewards"] is not None:
            rewards = {term: Reward(**reward) for term, reward in turn["rewards"].items()}
            yield (row["game"], turn["index"]), rewards


def _read_seat(seat: Record) -> SeatSpec:
    return SeatSpec(**seat | {"player": PlayerId.parse(seat["player"])})


def _read_turn(row: Record) -> Turn:
    sampled = row["sampled"]
    answer = Answer(
        player=PlayerId.parse(row["player"]),
        sampled=None if sampled is None else _read_sampled(sampled),
        **{name: row[name] for name in ANSWER_FIELDS},
    )
    return Turn(
        seat=row["seat"],
        index=row["index"],
        answer=answer,
        invalid=row["invalid"],
        seconds=row["seconds"],
    )


def _read_sampled(row: Record) -> SampledTokens:
    segments = tuple(map(_read_segment, row["segments"]))
    moves = tuple(Move(*move) for move in row.get("moves", ()))
    return SampledTokens(**row | {"segments": segments, "moves": moves})


def _read_segment(row: Record) -> Segment:
    if "logprobs" not in row:
        return Segment(token_ids=row["token_ids"], scored=False)
    if row["top_logprobs"] is not None:
        row = row | {"top_logprobs": [[*map(tuple, each)] for each in row["top_logprobs"]]}
    return Completion(**row)


def batch_records(batch: Batch, advantages: Sequence[float]) -> list[Record]:
    """A batch as it was trained on, a record a sample, in its order."""
    samples = [(owner, sample) for owner in batch.trajectories for sample in owner.samples]
    return [
        _sample_record(owner, sample, batch.staleness(sample), advantage)
        for (owner, sample), advantage in zip(samples, advantages, strict=True)
    ]


def sample_lines(batch: Batch, advantages: Sequence[float]) -> bytes:
    """The records' lines. Raises `ValueError` at a number that is not finite."""
    return json_lines(batch_records(batch, advantages))


def _sample_record(
    owner: Trajectory, sample: Sample, staleness: int | None, advantage: float
) -> Record:
    tokens = sample.tokens
    return {
        "game": owner.game_id,
        "env": owner.env,
        "seat": owner.seat,
        "turn": sample.turn,
        "group": owner.group_id,
        "staleness": staleness,
        "prompt_length": len(tokens.prompt_ids),
        "completion_length": tokens.num_scored,
        "rewards": _rewards(owner, sample),
        "reward": sample.reward + owner.terminal_reward,
        "outcome": owner.outcome,
        "forfeit": owner.forfeit,
        "advantage": advantage,
        "sampled": _sampled_record(tokens),
    }
