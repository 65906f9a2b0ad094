"""Loss of a batch without an update: it equals the step's loss and changes nothing."""

from copy import deepcopy
from typing import Any

import pytest
import torch

from tests.helpers.learners import make_batch, make_learner, make_sample, without_speed
from unstable.config import ModelConfig
from unstable.learners.learner import PolicyLearner
from unstable.types import Batch


def games(version: int = 0, won: float = 1.0) -> Batch:
    """Two groups of two games with three turns each, won by seat 0."""
    samples = [
        make_sample(
            [1, 2, group, game, turn],
            [5 + turn, 7][: 1 + turn % 2],
            won if game else -1.0,
            seat=game,
            turn=turn,
            game_id=10 * version + 2 * group + game,
            group_id=group,
            version=version,
        )
        for group in range(2)
        for game in range(2)
        for turn in range(3)
    ]
    return make_batch(samples, version)


ALGORITHMS: list[dict[str, Any]] = [
    {"name": "reinforce", "kl_loss": 0.1, "entropy": 0.1},
    {"name": "rft"},
    {"name": "ppo", "critic": {"kind": "adapter"}},
    {"name": "ppo", "critic": None, "baseline_decay": 0.5},
    {"name": "rloo", "importance": "sequence_mask"},
    {"name": "cispo", "kl_reward": 0.1},
]


def state(learner: PolicyLearner) -> dict[str, Any]:
    snapshot = learner.snapshot()
    critic = None if learner.critic is None else learner.critic.metrics
    return {"weights": snapshot.adapter.weights, "critic": critic, **snapshot.state}


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


@pytest.mark.parametrize("algorithm", ALGORITHMS, ids=lambda a: a["name"])
def test_loss_on_equals_the_step_loss(model: ModelConfig, algorithm: dict[str, Any]) -> None:
    learner, other = (make_learner(model, algorithm=algorithm, micro_batch_size=5) for _ in "12")
    for each in (learner, other):
        each.update(games(0))
    before = deepcopy(state(learner))
    loss = learner.loss_on(games(1))
    assert same(state(learner), before)
    assert all(each.grad is None for each in learner.policy.parameters())
    update, plain = learner.update(games(1)), other.update(games(1))
    assert loss.value == pytest.approx(update.metrics["learn/loss"], rel=1e-5)
    trained = update.metrics["learn/rft_kept"] if algorithm["name"] == "rft" else 12
    assert 0 < loss.tokens == (16 if trained == 12 else 8)
    assert without_speed(update) == without_speed(plain)

    assert same(state(learner), state(other))


def test_loss_on_of_rft_is_likelihood_of_won_turns(model: ModelConfig) -> None:
    learner = make_learner(model, algorithm={"name": "rft"})
    batch = games()
    won = [s.tokens for t in batch.trajectories if t.outcome > 0 for s in t.samples]
    logprobs = [logprob for each in learner.logprobs(won) for logprob in each]
    loss = learner.loss_on(batch)
    assert loss.value == pytest.approx(-sum(logprobs) / len(logprobs), rel=1e-5)
    assert loss.tokens == len(logprobs)
    assert learner.loss_on(games(won=-1.0)) == (0.0, 0)
