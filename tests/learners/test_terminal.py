"""Rewards of whole trajectories have the same weight in every algorithm, for any kind of term."""

import asyncio
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.helpers.builders import answering, game
from tests.helpers.learners import make_learner
from unstable.config import ALGORITHMS, RewardConfig
from unstable.rewards.terms import Rewards
from unstable.types import Batch, GameFailure, GameResult, Group, Move, Turn

WEIGHT, BONUS = 0.5, 0.3
OUTCOMES = np.array([1.0, -1.0, 0.5, 0.25])
TURNS = np.array([1, 2, 3, 4])  # of the trained seat
WORTH = WEIGHT * OUTCOMES + BONUS / TURNS  # mean reward per turn
PLAIN_CRITIC = {"gamma": 1.0, "gae_lambda": 1.0, "normalize": "none"}  # values start at 0


def judge(result: GameResult, seat: int) -> float:
    return result.outcomes[seat]


async def slow_judge(result: GameResult, seat: int) -> float:
    await asyncio.sleep(0.001)
    return result.outcomes[seat]


def first_turn(result: GameResult, turn: Turn) -> float | None:
    return BONUS if turn.index == 0 else None


def per_turn(values):
    return np.repeat(values, TURNS)


def turn_rewards():
    """Each turn's reward: what its trajectory earned, and the bonus on the first one."""
    firsts = np.concatenate([[BONUS] + [0.0] * (turns - 1) for turns in TURNS])
    return per_turn(WEIGHT * OUTCOMES) + firsts


def rewards_until_next_turn():
    """The bonus on the first turn, and the outcome on the last."""
    lasts = np.concatenate([[0.0] * (turns - 1) + [1.0] for turns in TURNS])
    return turn_rewards() - per_turn(WEIGHT * OUTCOMES) * (1 - lasts)


def zscore(values):
    return (values - values.mean()) / values.std()


def group_zscores():
    return per_turn(zscore(WORTH))


CASES: list[tuple[dict[str, Any], Any]] = [  # algorithm, and its advantages computed by hand
    ({"name": "reinforce", "normalize": "none"}, turn_rewards),
    ({"name": "reinforce++"}, lambda: zscore(turn_rewards())),
    ({"name": "rloo"}, lambda: per_turn(4 / 3 * (WORTH - WORTH.mean()))),
    ({"name": "grpo", "scale": "none"}, lambda: per_turn(WORTH - WORTH.mean())),
    ({"name": "grpo", "scale": "group"}, group_zscores),
    ({"name": "gspo"}, group_zscores),
    ({"name": "cispo"}, group_zscores),
    ({"name": "ppo", "critic": None, "normalize": "none"}, turn_rewards),
    ({"name": "ppo", "critic": PLAIN_CRITIC}, turn_rewards),
    ({"name": "a2c", "critic": PLAIN_CRITIC}, turn_rewards),
    (
        {"name": "vrpo", "critic": {"sees": "seat", "gradient": "sampled", "learning_rate": 1e-12}},
        rewards_until_next_turn,
    ),
    ({"name": "rft"}, lambda: np.eye(len(turn_rewards()))[0]),  # the first of equal turns
    ({"name": "distill"}, lambda: np.zeros(len(turn_rewards()))),  # rewards are ignored
    *(
        ({"name": name}, lambda: per_turn(WORTH - WORTH.mean()))
        for name in ("dpo", "ipo", "slic", "simpo", "kto")
    ),
]


def with_moves(turn):
    """Return the turn; a model's turn gets a legal move that is not its answer, so of no value."""
    if turn.answer.sampled is None:
        return turn
    moves = (Move([*turn.answer.sampled.token_ids, 0]),)
    return answering(turn, sampled=replace(turn.answer.sampled, moves=moves))


async def judged_batch(term):
    """A group of four games of unlike lengths, as the loop gets them."""
    terms = [RewardConfig(term=term, weight=WEIGHT), RewardConfig(term=f"{__name__}:first_turn")]

    async def played():
        for place, (outcome, turns) in enumerate(zip(OUTCOMES, TURNS, strict=True)):
            outcomes = (float(outcome), -float(outcome))
            result = game(
                turns=2 * turns, outcomes=outcomes, game_id=place, group_ids=[0, 1], group_size=4
            )
            yield [replace(result, turns=[with_moves(each) for each in result.turns])]

    found = []
    async for judged in Rewards(terms).judge(played()):
        for each in judged:
            assert not isinstance(each, GameFailure)
            found += each[1]
    found.sort(key=lambda trajectory: trajectory.game_id)
    return Batch(version=0, groups=(Group(trajectories=tuple(found)),))


def test_cases_cover_all_algorithms():
    assert {algorithm["name"] for algorithm, _ in CASES} == set(ALGORITHMS)


@pytest.mark.parametrize(("algorithm", "expected"), CASES)
@pytest.mark.parametrize("term", ["outcome", f"{__name__}:judge", f"{__name__}:slow_judge"])
async def test_terminal_reward_has_its_weight_in_all_algorithms(model, algorithm, expected, term):
    update = make_learner(model, algorithm=algorithm).update(await judged_batch(term))
    assert update.advantages == pytest.approx(expected().tolist(), abs=1e-6)


async def test_group_rewards_equal_the_learners_rewards():
    batch = await judged_batch(f"{__name__}:judge")
    assert [each.reward for each in batch.trajectories] == pytest.approx(WORTH.tolist())
