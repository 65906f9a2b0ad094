"""RFT imitates won turns, each once, and skips a batch that nobody won."""

import math

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from tests.helpers.learners import (
    count_forwards,
    make_batch,
    make_learner,
    make_sample,
    play_bandit,
    solve_bandit,
    trained,
)
from unstable.config import RFTConfig
from unstable.learners.algorithms import rft
from unstable.learners.batch import FlatBatch
from unstable.learners.losses import likelihood_loss
from unstable.types import Batch, Group

RFT = {"name": "rft"}


def make_games(version=0, won=1.0):
    """Two games: seat 0 wins in two turns, one as in the game before, seat 1 loses."""
    samples = [
        make_sample(
            [1, 2, seat, game * turn],
            [5 + turn] * (1 + turn),
            won if seat == 0 else -1.0,
            seat=seat,
            turn=turn,
            game_id=2 * version + game,
            version=version,
        )
        for game in range(2)
        for seat in range(2)
        for turn in range(2)
    ]
    return make_batch(samples, version)


def only(batch, kept):
    """Return the batch with only the samples at the indices `kept`."""
    wanted = {id(batch.samples[place]) for place in kept}
    trajectories = [
        replace(trajectory, samples=samples)
        for trajectory in batch.trajectories
        if (samples := tuple(each for each in trajectory.samples if id(each) in wanted))
    ]
    return Batch(version=batch.version, groups=(Group(trajectories=tuple(trajectories)),))


def test_won_turns_are_imitated_once():
    samples = [
        make_sample([1, 2], [3], 1.0, game_id=0),
        make_sample([1, 2], [3], 1.0, game_id=1),  # a repeat
        make_sample([1], [2, 3], 1.0, game_id=1),  # the same ids, with another prompt
        make_sample([1, 2], [4], 0.25, game_id=2),  # another answer, in a game half won
        make_sample([1, 2], [5], 0.0, game_id=3),  # drawn
        make_sample([1, 2], [6], -1.0, game_id=4),  # lost
        make_sample([1, 2], [6], 1.0, game_id=5),  # the same answer, won
        make_sample([1, 2], [7], 1.0, game_id=6, forfeit=True),
    ]
    batch = FlatBatch(make_batch(samples))
    found = rft.RFT(RFTConfig()).advantages(batch, np.zeros(8))  # rewards are ignored
    assert found.tolist() == [1, 0, 1, 1, 0, 0, 1, 0]


def test_likelihood_loss_by_hand():
    logprobs = torch.log(torch.tensor([0.5, 0.25])).requires_grad_()
    loss = likelihood_loss(logprobs, normalizer=torch.tensor([2.0, 4.0]))
    loss.backward()
    assert loss.item() == pytest.approx(math.log(2) / 2 + math.log(4) / 4)
    assert logprobs.grad.tolist() == [-0.5, -0.25]


@pytest.mark.parametrize("aggregation", ["token", "turn", "sequence", "constant"])
def test_lost_and_repeated_turns_do_not_affect_the_update(model, gradients, aggregation):
    batch = make_games()
    update = make_learner(model, algorithm=RFT | {"aggregation": aggregation}).update(batch)
    assert update.advantages == [1, 1, 0, 0, 0, 1, 0, 0]
    assert update.metrics["learn/rft_kept"] == 3
    kept = only(batch, np.flatnonzero(update.advantages))
    algorithm = RFT | {"aggregation": aggregation}
    for size in (8, 1):
        alone = make_learner(model, algorithm=algorithm, micro_batch_size=size).update(kept)

        assert alone.metrics["learn/loss"] == pytest.approx(update.metrics["learn/loss"])
        torch.testing.assert_close(gradients[-1], gradients[0], atol=1e-6, rtol=1e-5)


def test_reference_scores_only_imitated_turns(model, gradients):
    settings = {"algorithm": RFT | {"kl_loss": 0.5}, "micro_batch_size": 1}
    learner = make_learner(model, **settings)
    packs = count_forwards(learner.policy)
    learner.update(make_games(0, won=0.0))
    assert not packs
    advantages = [learner.update(make_games(version)).advantages for version in (1, 2)]
    assert len(packs) == 2 * np.count_nonzero(advantages) == 12  # reference pass and training pass
    alone = make_learner(model, **settings)
    alone.update(make_games(0, won=0.0))
    for version in (1, 2):
        kept = only(make_games(version), np.flatnonzero(advantages[version - 1]))
        metrics = alone.update(kept).metrics
    assert metrics["learn/kl_reference"] > 0
    torch.testing.assert_close(gradients[2:], gradients[:2], atol=1e-6, rtol=1e-5)


def test_batch_without_winner_is_skipped_and_counted(model, tmp_path):
    learner = make_learner(model, algorithm=RFT, steps_per_batch=2, micro_batch_size=4, epochs=2)
    before = trained(learner)
    for version in range(4):  # more than max_bad_updates: these are not bad updates
        update = learner.update(make_games(version, won=0.0))
        assert update.version == version + 1
        assert update.advantages == [0.0] * 8
        expected = {"rft_kept": 0, "rft_skipped": version + 1, "optimizer_steps": 0, "samples": 8}
        expected["tokens_per_second"] = 0  # no tokens were trained
        for name, value in expected.items():
            assert update.metrics[f"learn/{name}"] == value
    assert torch.equal(trained(learner), before)
    learner.save(tmp_path / "000004")
    again = make_learner(model, algorithm=RFT, steps_per_batch=2, micro_batch_size=4, epochs=2)
    again.load(tmp_path / "000004")
    metrics = again.update(make_games(4)).metrics
    assert metrics["learn/rft_skipped"] == 4
    assert metrics["learn/optimizer_steps"] == 4
    assert not torch.equal(trained(again), before)


def test_bandit_is_learned_from_random_play(model):
    options = {"algorithm": RFT, "learning_rate": 2e-3, "updates": 30}
    _, losses = solve_bandit(model, **options)
    again = make_learner(model, micro_batch_size=64, **options)
    repeated, _ = play_bandit(again, model, True, 4, batch_size=64)
    assert repeated == losses[:4]
