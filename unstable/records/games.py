"""What a line of the games' and samples' files holds: plain values, named as in `types`.

The tokens of a turn lie beside its other values; what no local model answered has none.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from unstable.config import ConfigError
from unstable.records.files import read_lines
from unstable.types import (
    Batch,
    GameResult,
    GameSpec,
    PlayerId,
    Reward,
    Sample,
    SampledTokens,
    SeatSpec,
    Trajectory,
    Turn,
)

Record = dict[str, Any]
SEAT_FIELDS = tuple(field.name for field in fields(SeatSpec) if field.name != "player")
TURN_FIELDS = tuple(field.name for field in fields(Turn) if field.name not in ("player", "sampled"))
TOKEN_FIELDS = tuple(field.name for field in fields(SampledTokens))
# Unlike `dataclasses.asdict`, whose copies of token lists would cost a millisecond a game.
_SEAT_VALUES, _TURN_VALUES, _TOKEN_VALUES = (
    attrgetter(*names) for names in (SEAT_FIELDS, TURN_FIELDS, TOKEN_FIELDS)
)
_TURN_KEYS = ("player", *TURN_FIELDS, *TOKEN_FIELDS, "rewards")

_NO_TOKENS = SampledTokens(
    prompt_ids=[], token_ids=[], logprobs=[], temperature=0.0, finish_reason="stop", version=None
)


def _rewards(owner: Trajectory, sample: Sample) -> dict[str, dict[str, float]]:
    """A turn's terms, and those that judge its whole trajectory, which stand on each turn."""
    rewards = owner.rewards | sample.rewards
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
        "outcomes": result.outcomes,
        "forfeit": result.forfeit,
        "raised": result.raised,
        "truncated": result.truncated,
        "reason": result.reason,
        "seconds": result.seconds,
        "turns": [
            _turn_record(turn, spec.seats[turn.seat].temperature, rewards.get(turn.index))
            for turn in result.turns
        ],
    }


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
    }


def _seat_record(seat: SeatSpec) -> Record:
    values = zip(SEAT_FIELDS, _SEAT_VALUES(seat), strict=True)
    return {"player": seat.player.name, **dict(values)}


def _turn_record(turn: Turn, temperature: float, rewards: Record | None) -> Record:
    tokens = turn.sampled or replace(_NO_TOKENS, temperature=temperature)
    own = (turn.player.name, *_TURN_VALUES(turn), *_TOKEN_VALUES(tokens), rewards)
    record = dict(zip(_TURN_KEYS, own, strict=True))
    if turn.sampled is None:
        record["finish_reason"] = None
    return record


def read_game(place: str, row: Record) -> GameResult:
    """What `game_record` wrote; raises `ConfigError`, with its place, for anything else."""
    if "turns" not in row:
        raise ConfigError(f"{place}: not a recorded game; give games/train-*.jsonl of a run")
    try:
        return _game(row)
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{place}: not a whole record of a game ({error!r})") from None


def _game(row: Record) -> GameResult:
    return GameResult(
        spec=read_spec(row),
        turns=[_read_turn(turn) for turn in row["turns"]],
        payoffs=row["payoffs"],
        outcomes=row["outcomes"],
        forfeit=row["forfeit"],
        raised=row["raised"],
        truncated=row["truncated"],
        reason=row["reason"],
        seconds=row["seconds"],
        fork=row["fork"],
    )


def read_spec(row: Record) -> GameSpec:
    """What `spec_record` made, alone or as part of a game's record."""
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
    )


class Recorded(NamedTuple):
    """A training game out of its file, its branches in it."""

    result: GameResult
    rewards: dict[tuple[int, int], dict[str, Reward]]  # of trained turns, by game and turn


def read_games(path: Path, start: int = 0) -> Iterator[Recorded]:
    """The games of a training file from byte `start` on, each with its branches.

    One whose branches are not all there, since the run ended as they were written, is left out.
    Raises `ConfigError` as `read_lines` does.
    """
    lines = read_lines(path, start, whole=True) if path.is_file() else ()
    rows = [_Row(*line) for line in lines]
    while rows:
        parent = rows.pop(0)
        result = read_game(*parent)
        last = result.spec.game_id + result.spec.branches
        branches = []
        while rows and result.spec.game_id < rows[0].row["game"] <= last:
            branches.append(rows.pop(0))
        if branches and len(branches) < result.spec.branches:
            continue
        if not branches and result.spec.branches and any(map(result.seat_turns, _trained(result))):
            continue
        result.branches = [read_game(*branch) for branch in branches]
        rewards = chain(*(_read_rewards(each.row) for each in (parent, *branches)))
        yield Recorded(result, dict(rewards))


class _Row(NamedTuple):
    place: str
    row: Record


def _trained(result: GameResult) -> list[int]:
    return [seat for seat, spec in enumerate(result.spec.seats) if spec.trained]


def _read_rewards(row: Record) -> Iterator[tuple[tuple[int, int], dict[str, Reward]]]:
    for turn in row["turns"]:
        if turn["rewards"] is not None:
            rewards = {term: Reward(**reward) for term, reward in turn["rewards"].items()}
            yield (row["game"], turn["index"]), rewards


def _read_seat(seat: Record) -> SeatSpec:
    return SeatSpec(**seat | {"player": PlayerId.parse(seat["player"])})


def _read_turn(row: Record) -> Turn:
    sampled = None
    if row["token_ids"]:
        tokens = {name: row[name] for name in TOKEN_FIELDS}
        if tokens["alternatives"] is not None:
            tokens["alternatives"] = [[*map(tuple, each)] for each in tokens["alternatives"]]
        sampled = SampledTokens(**tokens)
    own = {name: row[name] for name in TURN_FIELDS}
    return Turn(player=PlayerId.parse(row["player"]), sampled=sampled, **own)


def batch_records(batch: Batch, advantages: Sequence[float]) -> list[Record]:
    """A batch as it was trained on, a record a sample, in its order."""
    samples = [(owner, sample) for owner in batch.trajectories for sample in owner.samples]
    return [
        _sample_record(owner, sample, batch.staleness(sample), advantage)
        for (owner, sample), advantage in zip(samples, advantages, strict=True)
    ]


def _sample_record(owner: Trajectory, sample: Sample, staleness: int, advantage: float) -> Record:
    tokens = sample.tokens
    return {
        "game": owner.game_id,
        "env": owner.env,
        "seat": owner.seat,
        "turn": sample.turn,
        "group": owner.group_id,
        "version": tokens.version,
        "staleness": staleness,
        "prompt_length": len(tokens.prompt_ids),
        "completion_length": len(tokens.token_ids),
        "finish_reason": tokens.finish_reason,
        "prompt_cut": tokens.prompt_cut,
        "temperature": tokens.temperature,
        "rewards": _rewards(owner, sample),
        "reward": sample.reward + owner.terminal_reward,
        "outcome": owner.outcome,
        "forfeit": owner.forfeit,
        "advantage": advantage,
        "prompt_ids": tokens.prompt_ids,
        "token_ids": tokens.token_ids,
        "logprobs": tokens.logprobs,
    }
