"""Packs that are made ahead of time: identical gradients, and no thread left over."""

import threading

import pytest
import torch

from tests.helpers.learners import (
    make_batch,
    make_learner,
    tokens_of,
    trained,
    unlike_samples,
    without_speed,
)
from unstable.learners.micro_batches import MicroBatches, made_ahead
from unstable.learners.model import policy
from unstable.learners.model.token_table import TokenTable


@pytest.mark.parametrize(
    "algorithm",
    [
        {"name": "reinforce", "kl_loss": 0.1},
        {"name": "gspo"},
        {"name": "ppo", "critic": {"kind": "adapter"}},
    ],
    ids=lambda algorithm: algorithm["name"],
)
def test_packs_made_ahead_change_no_update(model, monkeypatch, gradients, algorithm):
    makers = []

    def spy(given):
        if isinstance(given, TokenTable):  # not the critic's prompts
            makers.append(threading.current_thread().name)
        return made(given)

    made = policy.pack_samples
    monkeypatch.setattr(policy, "pack_samples", spy)
    found = []
    for ahead in (False, True):
        learner = make_learner(model, algorithm=algorithm, micro_batch_size=2)
        learner.micro_batches.ahead = ahead
        gradients.clear()
        makers.clear()
        batches = [make_batch(unlike_samples(9), version) for version in (0, 1)]
        metrics = [without_speed(learner.update(batch)) for batch in batches]

        scores = learner.logprobs(tokens_of(unlike_samples(9)))
        found.append((metrics, scores, gradients.copy(), trained(learner)))
        assert all(name.startswith("ahead") for name in makers) == ahead and len(makers) > 10
    (metrics, scores, gradients, weights), (others, rescored, regradients, reweights) = found
    assert metrics == others and scores == rescored
    assert all(torch.equal(*pair) for pair in zip(gradients, regradients, strict=True))
    assert torch.equal(weights, reweights)


def test_made_ahead_keeps_order_and_drops_unused_item():
    begun: list[int] = []

    def make(number):
        begun.append(number)
        return 10 * number

    assert list(made_ahead([1, 2, 3], make, threaded=True)) == [(1, 10), (2, 20), (3, 30)]
    assert list(made_ahead([], make, threaded=True)) == []
    begun.clear()
    ahead = made_ahead(range(9), make, threaded=True)
    next(ahead)
    ahead.close()
    assert begun in ([0], [0, 1])  # at most one item is made ahead
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ahead")]


def test_made_ahead_raises_errors_in_the_caller():
    ahead = made_ahead([1, 0], lambda number: 1 / number, threaded=True)
    assert next(ahead) == (1, 1.0)
    with pytest.raises(ZeroDivisionError):
        next(ahead)


def test_packs_are_made_ahead_only_on_gpu(model):
    config = make_learner(model).config
    assert MicroBatches.of(config, make_learner(model).micro_batches.ranks, on_gpu=True).ahead
    assert not make_learner(model).micro_batches.ahead
