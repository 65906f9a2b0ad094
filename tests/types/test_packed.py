"""Trajectories and batches arrive at the learner exactly as actors send them, to the bit."""

import math
import pickle
from typing import Any

from msgspec.structs import replace

from tests.helpers.builders import completion, game, packed, sampled, spec, turn
from unstable.config import RewardConfig
from unstable.rewards.terms import Rewards
from unstable.types import (
    Move,
    PackedBatch,
    PackedTrajectory,
    PlayerId,
    Reward,
    Sample,
    SeatSpec,
    Segment,
    Trajectory,
)


def trajectory(**changes: object) -> Trajectory:
    """Two turns: one of a single completion, one into which something was inserted."""
    inserted = Segment(token_ids=[5, 6], scored=False)
    odd = completion(token_ids=[3], logprobs=[-1 / 3], finish_reason="length", adapter=None)
    moves = (Move([1, 2], 1 / 3), Move([3], None))
    tokens = replace(sampled(4), segments=(completion(), inserted, odd), prompt_cut=7, moves=moves)
    samples = (
        Sample(turn=1, tokens=sampled(3, temperature=0.7), rewards={"a": Reward(0.1, 0.2)}),
        Sample(turn=3, tokens=tokens, rewards={}),
    )
    place: dict[str, Any] = {"game_id": 5, "env": "Nim-v0", "seat": 1, "group_id": 17}
    rewards = {"outcome": Reward(math.pi, -math.e)}
    own = {"outcome": 1 / 7, "forfeit": False, "samples": samples, "rewards": rewards}
    return Trajectory(**place | own | changes)


def test_packed_trajectory_round_trips() -> None:
    made = trajectory()
    (closed,) = pickle.loads(pickle.dumps(packed([made])))
    assert closed.opened() == made
    assert (closed.version, closed.num_samples, closed.reward) == (3, 2, made.reward)
    assert (closed.game_id, closed.seat, closed.group_id) == (5, 1, 17)
    kinds = [type(each) for each in closed.opened().samples[1].tokens.segments]
    assert kinds == [type(each) for each in made.samples[1].tokens.segments]


def test_packed_batch_keeps_groups_and_drops_top_logprobs() -> None:
    asked = sampled(3, top_logprobs=[[(1, -0.5)], [(2, -0.1)]])
    played = game(turns=1)
    played.turns = [turn(0, 0, "main@0", sampled=asked)]
    (own,) = Rewards([RewardConfig()]).trajectories(played)
    assert own.samples[0].tokens == asked.without_top_logprobs()
    made = [trajectory(seat=seat, game_id=n) for n in range(3) for seat in (0, 1)]
    closed = PackedBatch(5, (tuple(packed(made[:2])), tuple(packed(made[2:]))))
    batch = closed.opened()
    assert batch.version == 5 and closed.num_samples == len(batch.samples) == 12
    assert [list(group.trajectories) for group in batch.groups] == [made[:2], made[2:]]


def test_packed_trajectories_and_specs_are_small() -> None:
    long = sampled(3, token_ids=[*range(30_000, 34_000)], logprobs=[-0.1] * 4000)
    closed = PackedTrajectory.of(trajectory(samples=(Sample(turn=1, tokens=long, rewards={}),)))
    assert len(closed.content) < 15 * 4000
    opener = SeatSpec(player=PlayerId.policy(0), temperature=1.0)
    made = replace(spec(("main@3", "random")), opening=2, opener=opener, teams=((0,), (1,)))
    assert pickle.loads(pickle.dumps(made)) == made
    assert len(pickle.dumps([game(game_id=n).spec for n in range(10)])) < 10 * 250
