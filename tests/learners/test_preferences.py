"""Preference learning: the pairs of a batch, steps on them, and learning."""

import math

import numpy as np
import pytest
import torch

from tests.helpers.learners import (
    assert_resumes_to_the_bit,
    assert_sizes_agree,
    count_forwards,
    make_batch,
    make_learner,
    make_sample,
    trained,
)
from unstable.config import ConfigError, parse
from unstable.learners.batch import FlatBatch
from unstable.learners.pairs import group_pairs, position_pairs
from unstable.learners.regularization import turn_kl

PAIRWISE = ["dpo", "ipo", "slic", "simpo"]
PREFERENCES = [*PAIRWISE, "kto"]


def game(number, reward, *turns, **changes):
    """The turns of a game: prompt and answer of each."""
    return [
        make_sample(list(prompt), list(answer), reward, game_id=number, turn=turn, **changes)
        for turn, (prompt, answer) in enumerate(turns)
    ]


def pairs_of(find, *games, margin=0.0):
    batch = FlatBatch(make_batch(sum(games, [])))
    rewards_S = batch.mean_T(batch.rewards_S)[batch.trajectories_S]
    return [list(map(tuple, pairs)) for pairs in find(batch, rewards_S, margin)]


# Pairs.


def test_group_pairs_are_first_diverging_turns():
    shared = ((1, 2), (3,))
    games = [
        game(0, 0.0, shared, ((4,), (5,))),  # samples 0 and 1
        game(1, 1.0, shared, ((4,), (6,)), ((7,), (8,))),  # 2 to 4
        game(2, 1.0, shared, ((9,), (5,))),  # 5 and 6: differs from the others by its prompt only
    ]
    assert pairs_of(group_pairs, *games) == [[(3, 1)]]
    games = [game(i, float(i), ((1,), (2 + i,)), group_id=i // 2) for i in range(5)]
    assert pairs_of(group_pairs, *games) == [[(1, 0)], [(3, 2)]]  # the fifth game has no partner


def test_pairs_prefer_higher_rewards_beyond_the_margin():
    rewards = [1.0, 0.5, 0.5, 0.0]
    games = [game(i, reward, ((1,), (2 + i,))) for i, reward in enumerate(rewards)]
    assert pairs_of(group_pairs, *games) == [[(0, 1), (0, 2), (0, 3), (1, 3), (2, 3)]]
    assert pairs_of(group_pairs, *games, margin=1.0) == [[(0, 3)]]
    assert pairs_of(group_pairs, *games, margin=1.1) == [[]]
    answers = [2, 2, 2, 3, 3, 3]
    rewards = [1.0, 1.0, 0.0, 1.0, 0.0, 0.0]
    games = [game(i, rewards[i], ((1,), (answers[i],))) for i in range(6)]
    ((*pairs,),) = pairs_of(group_pairs, *games)
    assert sum(answers[chosen] == 2 for chosen, _ in pairs) == 4
    assert sum(answers[chosen] == 3 for chosen, _ in pairs) == 1


def test_position_pairs_compare_mean_rewards():
    games = [
        game(0, 1.0, ((1,), (2,)), group_id=0),
        game(1, -1.0, ((1,), (2,)), group_id=1),  # the same answer: 0 on average
        game(2, 0.5, ((1,), (3,)), group_id=2),
        game(3, 0.0, ((1,), (4,)), group_id=3),  # equal to the first
        game(4, 9.0, ((1,), (5,)), group_id=4, seat=1),  # another seat
        game(5, 9.0, ((2,), (5,)), group_id=5),  # another prompt
    ]
    assert pairs_of(position_pairs, *games) == [[(2, 0), (2, 3)]]


def test_pairs_are_made_from_clipped_rewards(model):
    batch = make_batch(sum([game(i, float(i), ((1,), (2 + i,))) for i in range(3)], []))
    for clip, pairs in ((None, 3), ((0.0, 1.0), 2)):
        learner = make_learner(model, algorithm={"name": "dpo", "reward_clip": clip})
        assert learner.update(batch).metrics["learn/pairs"] == pairs


# A step.


def games_of(version=0, size=4):
    """Two seats' groups with two shared turns at most, answers of one to three tokens."""
    games = [
        game(
            number,
            reward,
            *[
                ((1, 2, 3 + seat, turn), [4 + (number * turn + seat + 1) % 8] * (1 + number % 3))
                for turn in range(1 + number % 2)
            ],
            seat=seat,
            group_id=2 * version + seat,
            version=version,
            logprobs=[-2.5] * (1 + number % 3),
        )
        for number, reward in enumerate(np.linspace(-1, 1, size).tolist())
        for seat in range(2)
    ]
    return make_batch(sum(games, []), version)


EVERYTHING = [
    {"name": "dpo", "label_smoothing": 0.1, "length_weight": 0.1, "sft_weight": 0.2},
    {"name": "dpo", "pairs": "position", "kl_loss": 0.1, "kl_estimator": "k3"},
    {"name": "ipo", "kl_loss": 0.1, "entropy": 0.1},
    {"name": "slic", "length_weight": 0.1},
    {"name": "simpo", "kl_loss": 0.1},
    {"name": "kto", "desirable_weight": 0.5},
]


@pytest.mark.parametrize("algorithm", EVERYTHING, ids=lambda each: "-".join(map(str, each)))
def test_micro_batches_change_neither_gradient_nor_metrics(model, gradients, algorithm):
    options = {"algorithm": algorithm, "epochs": 2}
    batches = [games_of(version) for version in (0, 1)]
    rows = assert_sizes_agree(gradients, model, batches, sizes=(64, 3, 1), **options)
    for row in rows[1:]:
        assert row == pytest.approx(rows[0], rel=1e-3, abs=1e-5)


def test_pairs_are_not_split_across_micro_batches(model):
    learner = make_learner(model, algorithm={"name": "simpo"}, micro_batch_size=1)
    packs = count_forwards(learner.policy)
    metrics = learner.update(games_of()).metrics
    assert len(packs) == metrics["learn/pairs"] > 8


@pytest.mark.parametrize("name", PREFERENCES)
def test_gradient_matches_finite_differences(model, monkeypatch, gradients, name):
    """The gradient of the reported loss through the LoRA matches finite differences along it."""

    def loss(shift=None):
        learner = make_learner(model, algorithm={"name": name, "beta": 1.0})
        learner.update(games_of(0))  # moves away from the reference, where hinge losses bend
        if shift is not None:
            with torch.no_grad():
                torch.nn.utils.vector_to_parameters(
                    trained(learner) + shift, learner.optimizer.parameters
                )
        if name == "kto":  # held constant
            monkeypatch.setattr(learner.algorithm, "refer", lambda _: None)
        return learner.update(games_of(1)).metrics["learn/loss"]

    loss()
    gradient = gradients[1]
    step = 0.02 * gradient / gradient.norm()
    slope = (loss(step) - loss(-step)) / 0.04
    assert slope == pytest.approx(gradient.norm().item(), rel=0.02)


def test_metrics_are_means_over_pairs(model):
    """Not over tokens: a pair with long answers counts as much as any other."""
    learner = make_learner(model, algorithm={"name": "dpo", "beta": 0.5})
    samples = [
        *game(0, 1.0, ((1,), (2,)), group_id=0),
        *game(1, 0.0, ((1,), (3,)), group_id=0),
        *game(2, 1.0, ((2,), (4, 5, 6, 7)), group_id=1),
        *game(3, 0.0, ((2,), (8, 9, 10)), group_id=1),
    ]
    learner.update(games_of(0))
    batch = make_batch(samples, 1)
    own = learner.logprobs([sample.tokens for sample in batch.samples])
    with learner.reference.in_place():
        reference = learner.logprobs([sample.tokens for sample in batch.samples])
    ratios = [sum(a) - sum(b) for a, b in zip(own, reference, strict=True)]
    margins = [0.5 * (ratios[0] - ratios[1]), 0.5 * (ratios[2] - ratios[3])]
    metrics = learner.update(batch).metrics
    assert metrics["learn/pair_margin"] == pytest.approx(np.mean(margins), abs=1e-6)
    assert metrics["learn/pair_margin/env/0"] == metrics["learn/pair_margin"]
    assert metrics["learn/pair_accuracy"] == np.mean([margin > 0 for margin in margins])
    assert metrics["learn/chosen_logprob"] == pytest.approx((sum(own[0]) + sum(own[2])) / 2)
    assert metrics["learn/rejected_logprob"] == pytest.approx((sum(own[1]) + sum(own[3])) / 2)
    losses = [math.log1p(math.exp(-margin)) for margin in margins]
    assert metrics["learn/loss"] == pytest.approx(np.mean(losses), abs=1e-6)
    assert metrics["learn/pairs"] == 2 and metrics["learn/pairless_share"] == 0


@pytest.mark.parametrize("old", ["learner", "engine"])
def test_z0_is_the_mean_log_ratio_of_trained_turns(model, old):
    learner = make_learner(model, algorithm={"name": "kto", "old_logprobs": old})
    learner.update(games_of(0))
    batch = games_of(1, size=5)  # the third game is at the mean
    tokens = [sample.tokens for sample in batch.samples]
    kept = [index for index, owner in enumerate(FlatBatch(batch).owners_S) if owner.reward != 0]
    scored = learner.scorer.logprobs(tokens)
    sampled = [torch.tensor(each.logprobs) for each in tokens]
    with learner.reference.in_place():
        reference = learner.scorer.logprobs(tokens)
    ratios = turn_kl(scored if old == "learner" else sampled, reference)[kept]
    metrics = learner.update(batch).metrics
    assert len(kept) < len(tokens)
    assert metrics["learn/kto_kl"] == pytest.approx(max(0, ratios.mean()), abs=1e-6)


def test_kto_baseline_is_the_mean_of_role_or_group(model):
    games = [game(i, float(i), ((1,), (2 + i,)), group_id=i // 2, seat=i // 4) for i in range(6)]
    for baseline, expected in (
        ("role", [-1.5, -0.5, 0.5, 1.5, -0.5, 0.5]),
        ("group", [-0.5, 0.5] * 3),
    ):
        learner = make_learner(model, algorithm={"name": "kto", "baseline": baseline})
        assert learner.update(make_batch(sum(games, []))).advantages == expected


@pytest.mark.parametrize("algorithm", [{"name": name} for name in PREFERENCES])
def test_batch_without_preferences_is_skipped_and_counted(model, tmp_path, algorithm):
    def batch(version, rewards):
        games = [game(i, each, ((1,), (2 + i,)), version=version) for i, each in enumerate(rewards)]
        return make_batch(sum(games, []), version)

    learner = make_learner(model, algorithm=algorithm)
    before = trained(learner)
    for version in range(4):  # more than max_bad_updates
        metrics = learner.update(batch(version, [0.1] * 3)).metrics
        assert metrics["learn/preferences_skipped"] == version + 1
        assert metrics["learn/optimizer_steps"] == 0
    assert torch.equal(trained(learner), before)
    learner.save(tmp_path / "000004")
    again = make_learner(model, algorithm=algorithm)
    again.load(tmp_path / "000004")
    metrics = again.update(batch(4, [0.1, 0.2, 0.3])).metrics
    assert metrics["learn/preferences_skipped"] == 4 and metrics["learn/optimizer_steps"] == 1


def test_reference_of_resumed_run_is_the_start(model, tmp_path):
    def learner():
        return make_learner(model, algorithm={"name": "dpo"})

    *_, second, _ = assert_resumes_to_the_bit(learner, games_of, tmp_path, saved=1, in_all=2)
    assert second.update(games_of(2)).metrics["learn/pair_margin"] != 0


def test_moving_reference_resets_pair_margins(model):

    learner = make_learner(model, algorithm={"name": "dpo", "reference": {"every": 1}})
    learner.update(games_of(0))
    assert learner.update(games_of(1)).metrics["learn/pair_margin"] == 0


# Learning.


@pytest.mark.parametrize("name", PREFERENCES)
def test_tiny_model_learns_preferences(model, name):
    """After each prompt one answer is chosen over another, long over short and short over long."""
    games = [
        game(2 * i + lost, 1.0 - 2 * lost, ((1, 2 + i), answers[lost]), group_id=i)
        for i, answers in enumerate([((7,), (8,)), ((8,), (7,)), ((5, 6), (9,)), ((9,), (5, 6))])
        for lost in range(2)
    ]
    learner = make_learner(model, algorithm={"name": name}, learning_rate=5e-3, updates=25)
    preferred = []
    for version in range(25):
        batch = make_batch(sum(games, []), version)
        own = [sum(each) for each in learner.logprobs([s.tokens for s in batch.samples])]
        preferred.append([a - b for a, b in zip(own[::2], own[1::2], strict=True)])
        metrics = learner.update(batch).metrics
    gained = np.array(preferred[-1]) - preferred[0]
    assert (gained > 0.5).all()
    kind = "kto" if name == "kto" else "pair"
    assert metrics[f"learn/{kind}_accuracy"] == 1 and metrics[f"learn/{kind}_margin"] > 0


# Settings.


def test_group_size_is_1_unless_groups_are_compared():
    for algorithm, size in (
        ({"name": "dpo"}, 8),
        ({"name": "dpo", "pairs": "position"}, 1),
        ({"name": "kto"}, 1),
        ({"name": "kto", "baseline": "group"}, 8),
    ):
        assert parse({"learner": {"algorithm": algorithm}}).group_size == size
    with pytest.raises(ConfigError, match=r"groups.size = 1: learner.algorithm.name = 'dpo'"):
        parse({"learner": {"algorithm": {"name": "dpo"}}, "groups": {"size": 1}})
    with pytest.raises(ConfigError, match="desirable_weight = 0: undesirable_weight is 0 too"):
        weights = {"desirable_weight": 0, "undesirable_weight": 0}
        parse({"learner": {"algorithm": {"name": "kto", **weights}}})


def test_reference_exists_only_if_the_loss_reads_it(model):
    for name, has in (("dpo", True), ("kto", True), ("simpo", False)):
        assert (make_learner(model, algorithm={"name": name}).reference is not None) == has
