"""What a line of the games' and samples' files holds: plain values, named as in `types`.

The tokens of a turn lie beside its other values; what no local model answered has none.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from unstable.config import ConfigError
from unstable.types import (
    Batch,
    GameResult,
    GameSpec,
    PlayerId,
    Sample,
    SampledTokens,
    SeatSpec,
    Trajectory,
    Turn,
)

Record = dict[str, Any]
SEAT_FIELDS = [field.name for field in fields(SeatSpec) if field.name != "player"]
TURN_FIELDS = [field.name for field in fields(Turn) if field.name not in ("player", "sampled")]
LATER_FIELDS: Record = {"cut_characters": 0, "votes": None}
"""Fields of a turn that files of earlier releases lack, and what holds there."""
TOKEN_FIELDS = [field.name for field in fields(SampledTokens)]


def _values(value: object, names: list[str]) -> Record:
    """Like `dataclasses.asdict`, whose copies of token lists would cost a millisecond a game."""
    return {name: getattr(value, name) for name in names}


def _rewards(owner: Trajectory, sample: Sample) -> dict[str, dict[str, float]]:
    """A turn's terms, and those that judge its whole trajectory, which stand on each turn."""
    return {term: reward._asdict() for term, reward in (owner.rewards | sample.rewards).items()}


def game_record(
    result: GameResult, trajectories: Sequence[Trajectory], version: int, actor: int | None
) -> Record:
    """A finished game; a turn's `rewards` are None where it was not trained on."""
    spec = result.spec
    rewards = {
        sample.turn: _rewards(each, sample) for each in trajectories for sample in each.samples
    }
    return {
        "game": spec.game_id,
        "purpose": spec.purpose,
        "env": spec.env,
        "seed": spec.seed,
        "version": version,
        "actor": actor,
        "member": spec.member,
        "branches": spec.branches,
        "fork": result.fork,
        "opening": spec.opening,
        "opener": None if spec.opener is None else _seat_record(spec.opener),
        "players": [seat.player.name for seat in spec.seats],
        "seats": [_seat_record(seat) for seat in spec.seats],
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


def _seat_record(seat: SeatSpec) -> Record:
    return {"player": seat.player.name, **_values(seat, SEAT_FIELDS)}


def _turn_record(turn: Turn, temperature: float, rewards: Record | None) -> Record:
    nothing = SampledTokens(
        prompt_ids=[],
        token_ids=[],
        logprobs=[],
        temperature=temperature,
        finish_reason="stop",
        version=None,
    )
    tokens = _values(turn.sampled or nothing, TOKEN_FIELDS)
    if turn.sampled is None:
        tokens["finish_reason"] = None
    own = _values(turn, TURN_FIELDS)
    return {"player": turn.player.name, **own, **tokens, "rewards": rewards}


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
        spec=GameSpec(
            game_id=row["game"],
            purpose=row["purpose"],
            env=row["env"],
            seed=row["seed"],
            seats=tuple(_read_seat(seat) for seat in row["seats"]),
            member=row.get("member", 0),
            branches=row.get("branches", 0),
            opening=row.get("opening", 0),
            opener=_read_seat(row["opener"]) if row.get("opener") else None,
        ),
        turns=[_read_turn(turn) for turn in row["turns"]],
        payoffs=row["payoffs"] if "payoffs" in row else row["outcomes"],
        outcomes=row["outcomes"],
        forfeit=row["forfeit"],
        raised=row.get("raised", False),
        truncated=row["truncated"],
        reason=row["reason"],
        seconds=row["seconds"],
        fork=row.get("fork", 0),
    )


def _read_seat(seat: Record) -> SeatSpec:
    return SeatSpec(**seat | {"player": PlayerId.parse(seat["player"])})


def _read_turn(row: Record) -> Turn:
    sampled = None
    if row["token_ids"]:
        sampled = SampledTokens(**{name: row[name] for name in TOKEN_FIELDS})
    given = LATER_FIELDS | row
    own = {name: given[name] for name in TURN_FIELDS}
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
