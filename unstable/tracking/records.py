"""What a line of the games' and samples' files holds: plain values, named as in `types`."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from unstable.types import Batch, GameResult, Reward, Sample, SeatSpec, Trajectory, Turn

Record = dict[str, Any]
SEAT_FIELDS = [field.name for field in fields(SeatSpec)]
TURN_FIELDS = [field.name for field in fields(Turn)]


def _values(value: object, names: list[str]) -> Record:
    """Like `dataclasses.asdict`, whose copies of token lists would cost a millisecond a game."""
    return {name: getattr(value, name) for name in names}


def _rewards(rewards: dict[str, Reward]) -> dict[str, dict[str, float]]:
    return {term: reward._asdict() for term, reward in rewards.items()}


def game_record(
    result: GameResult, trajectories: Sequence[Trajectory], version: int, actor: int | None
) -> Record:
    """A finished game; a turn's `rewards` are None where it was not trained on."""
    spec = result.spec
    rewards = {
        sample.turn: _rewards(sample.rewards) for each in trajectories for sample in each.samples
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
        "players": [seat.player for seat in spec.seats],
        "seats": [_values(seat, SEAT_FIELDS) for seat in spec.seats],
        "outcomes": result.outcomes,
        "forfeit": result.forfeit,
        "truncated": result.truncated,
        "reason": result.reason,
        "seconds": result.seconds,
        "turns": [
            {**_values(turn, TURN_FIELDS), "rewards": rewards.get(turn.index)}
            for turn in result.turns
        ],
    }


def sample_record(sample: Sample, staleness: int, advantage: float) -> Record:
    """A sample as it was trained on."""
    return {
        "game": sample.game_id,
        "env": sample.env,
        "seat": sample.seat,
        "turn": sample.turn,
        "group": sample.group_id,
        "version": sample.version,
        "staleness": staleness,
        "prompt_length": len(sample.prompt_ids),
        "completion_length": len(sample.token_ids),
        "finish_reason": sample.finish_reason,
        "prompt_cut": sample.prompt_cut,
        "temperature": sample.temperature,
        "rewards": _rewards(sample.rewards),
        "reward": sample.reward,
        "outcome": sample.outcome,
        "forfeit": sample.forfeit,
        "advantage": advantage,
        "prompt_ids": sample.prompt_ids,
        "token_ids": sample.token_ids,
        "logprobs": sample.logprobs,
    }


def sample_records(batch: Batch, advantages: Sequence[float]) -> list[Record]:
    """A batch as it was trained on, in its order."""
    return [
        sample_record(sample, batch.staleness(sample), advantage)
        for sample, advantage in zip(batch.samples, advantages, strict=True)
    ]
