"""VRPO: advantages computed by hand, unbiased for any Q, and their gradient."""

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.helpers.learners import VOCAB, Made, make_batch, make_learner, make_sample, token_sample
from tests.helpers.mistakes import refused
from unstable.contrib.algorithms.vrpo import Moves, action_advantages
from unstable.learners.batch import FlatBatch
from unstable.learners.model.packing import pack_samples
from unstable.types import Move, Reward

HOT = 0.3  # temperature that makes the tiny model's answers vary
ANSWERS = [[word, last] for word in range(VOCAB) for last in range(VOCAB)]
LEGAL = [12 * word for word in (4, 5, 6)]  # indices of the answers that end with 0, for three words
MOVES = tuple(Move(ANSWERS[place]) for place in LEGAL)
OWN = {"normalize": "none", "sarsa_lambda": 1.0}


ROWS = st.lists(
    st.tuples(*[st.floats(-5, 5)] * 3, st.booleans(), st.integers(0, 3)), min_size=1, max_size=12
)  # reward, Q, V, is legal, trajectory


@given(ROWS, st.floats(0.1, 1), st.floats(0, 1), st.randoms(use_true_random=False))
def test_advantages_equal_brute_force_in_any_order(rows, gamma, decay, random) -> None:
    turns = list(range(len(rows)))
    random.shuffle(turns)
    rewards, actions, values, legal, owners = (np.array(each) for each in zip(*rows, strict=True))
    found, targets = action_advantages(
        rewards, actions, values, legal, owners, turns, gamma=gamma, decay=decay
    )
    for place, (_, own, value, _, trajectory) in enumerate(rows):
        later = [i for i, row in enumerate(rows) if row[4] == trajectory]
        later = sorted((i for i in later if turns[i] >= turns[place]), key=turns.__getitem__)
        total = 0.0
        for k, i in enumerate(later):
            after = rows[later[k + 1]][2] if k + 1 < len(later) else 0.0
            taken_off = rows[i][1] if rows[i][3] or i == place else rows[i][2]
            total += (gamma * decay) ** k * (rows[i][0] + gamma * after - taken_off)
        assert found[place] == pytest.approx(own - value + decay * total, abs=1e-8)
        assert targets[place] == pytest.approx(own + total, abs=1e-8)


def logprobs(learner: Any, prompt: list[int]) -> Tensor:
    """Log-probabilities of all two-token answers, by token [V * V, 2]."""
    answers = [token_sample(prompt, each, HOT) for each in ANSWERS]
    return learner.policy(pack_samples(answers)).logprobs_N.view(-1, 2)


def spoil(learner: Any) -> None:
    """Perturb the critic and the policy, so that neither is at its start."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in (*learner.critic.head.parameters(), *learner.policy.trained.parameters):
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)


def won(first: int, second: int | None) -> float:
    """Payoff of a game of two turns, or of one turn whose answer is an illegal move."""
    return -30.0 if second is None else 50 * math.sin(3 * first + 7 * second)


def game(number: int, first: int, second: int | None) -> list[Made]:
    pay = {"terminal": {"outcome": Reward(won(first, second), won(first, second))}}
    same: dict[str, Any] = {"temperature": HOT, "game_id": number, "moves": MOVES, **pay}
    turns = [make_sample([1, 2], ANSWERS[first], 0.0, turn=0, **same)]
    if second is not None:
        turns.append(make_sample([1, 2, 3, first % 11], ANSWERS[second], 0.0, turn=2, **same))
    return turns


GAMES: list[tuple[int, int | None]] = [
    *product(LEGAL, range(len(ANSWERS))),
    *((answer, None) for answer in range(len(ANSWERS)) if answer not in LEGAL),
]


@pytest.mark.parametrize("kind", ["head", "adapter"])
def test_mean_over_all_games_is_true_gradient_for_any_q(model, kind) -> None:
    """All games of at most two turns, illegal answers too, weighted by the policy's probability."""
    learner = make_learner(
        model, algorithm={"name": "vrpo", "critic": OWN | {"kind": kind}}, micro_batch_size=512
    )
    spoil(learner)
    batch = FlatBatch(make_batch([s for i, each in enumerate(GAMES) for s in game(i, *each)]))
    estimate = learner.critic.estimate(batch, batch.turn_rewards_S, learner.scorer)
    assert estimate.values_S.std() > 0.1

    first_A = logprobs(learner, [1, 2]).sum(1)
    second = {first: logprobs(learner, [1, 2, 3, first % 11]).sum(1) for first in LEGAL}
    assert 0.005 < first_A[LEGAL].exp().sum() < 0.9

    advantages = iter(estimate.advantages_S.tolist())
    truth, surrogate = torch.zeros(()), torch.zeros(())
    for first, after in GAMES:
        chosen = [first_A[first]] + ([] if after is None else [second[first][after]])
        likely = torch.stack(chosen).sum().exp()
        truth = truth + likely * won(first, after)
        for each in chosen:
            surrogate = surrogate + likely.detach() * next(advantages) * each
    parameters = learner.policy.trained.parameters
    expected = torch.autograd.grad(truth, parameters, retain_graph=True)
    found = torch.autograd.grad(surrogate, parameters)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert max(each.abs().max() for each in expected) > 1e-2


def test_update_gradient_is_gradient_of_expected_reward(model, gradients) -> None:
    """One turn's answers, importance-weighted by their probabilities, give the exact gradient."""
    algorithm = {"name": "vrpo", "critic": OWN, "importance_cap": 1e9, "aggregation": "turn"}
    learner = make_learner(model, algorithm=algorithm, batch_size=144, micro_batch_size=50)
    spoil(learner)
    rewards = [math.sin(5 * index) for index in range(len(ANSWERS))]
    logprobs_AT = logprobs(learner, [1, 2])
    loss = -(logprobs_AT.sum(1).exp() * torch.tensor(rewards)).sum()
    parameters = learner.policy.trained.parameters
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters)])
    # The turn's loss is a mean over its two tokens: each weighs 2 x 144 x the answer's probability.
    own_AT = logprobs_AT.detach().double()
    sampled_AT = own_AT - own_AT.sum(1, keepdim=True) - math.log(2 * len(ANSWERS))
    same: dict[str, Any] = {"temperature": HOT, "moves": MOVES}
    samples = [
        make_sample([1, 2], answer, reward, game_id=index, logprobs=own.tolist(), **same)
        for index, (answer, reward, own) in enumerate(
            zip(ANSWERS, rewards, sampled_AT, strict=True)
        )
    ]

    learner.update(make_batch(samples))
    torch.testing.assert_close(gradients[0][: len(expected)], expected, atol=1e-5, rtol=1e-4)
    assert expected.abs().max() > 1e-2


def test_advantages_average_to_0_over_the_policys_moves(model) -> None:
    learner = make_learner(model, algorithm={"name": "vrpo", "critic": OWN | {"sarsa_lambda": 0}})
    spoil(learner)
    samples = [
        make_sample([1, 2, 3], move.token_ids, temperature=HOT, game_id=index, moves=MOVES)
        for index, move in enumerate(MOVES)
    ]
    batch = FlatBatch(make_batch(samples))
    estimate = learner.critic.estimate(batch, batch.turn_rewards_S, learner.scorer)
    shares = logprobs(learner, [1, 2, 3]).detach().double().sum(1)[LEGAL].exp()
    assert estimate.advantages_S.std() > 0.1
    assert (shares / shares.sum()).numpy() @ estimate.advantages_S == pytest.approx(0.0, abs=1e-6)
    assert (shares / shares.sum()).min() > 0.01


def test_equal_moves_are_scored_once_and_illegal_answers_too() -> None:
    samples = [
        make_sample([1, 2], [4, 0], moves=MOVES),
        make_sample([1, 2], [5, 0], moves=MOVES, game_id=1),
        make_sample([1, 2], [9, 0], moves=MOVES, game_id=2),
        make_sample([1, 3], [4, 0], moves=MOVES[:1], game_id=3),
    ]
    asked = Moves([each.sample.tokens for each in samples])
    scored = [(each.prompt_ids, each.token_ids) for each in asked.answers]
    assert scored == [
        *(([1, 2], [word, 0]) for word in (4, 5, 6)),
        *(([1, 3], [4, 0]), ([1, 2], [9, 0])),
    ]
    assert asked.legal_S.tolist() == [True, True, False, True]
    shares = np.log([0.2, 0.1, 0.1, 0.5, 0.6])
    actions, values = asked.values(shares, np.array([1.0, 2.0, 4.0, 8.0, 16.0]))
    assert actions.tolist() == [1.0, 2.0, 16.0, 8.0]
    assert values == pytest.approx([2.0, 2.0, 2.0, 8.0])  # (0.2 + 0.2 + 0.4) / 0.4


def test_turns_without_legal_moves_are_rejected(model) -> None:
    learner = make_learner(model, algorithm={"name": "vrpo"})
    refused(
        "1 of 2 turns were recorded without legal moves",
        learner.update,
        make_batch([make_sample([1], [4]), make_sample([1], [4], moves=())]),
    )
