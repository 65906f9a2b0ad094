"""Entropy and KL of a move: their gradients by enumeration, their weights, and R-NaD's rewards."""

import math

import numpy as np
import pytest
import torch

from tests.helpers.enumerated import (
    WORDS,
    answer_logprobs,
    gradient,
    mixed,
    no_loss,
    peft_model,
    samples,
    scored,
)
from tests.helpers.learners import (
    assert_sizes_agree,
    count_forwards,
    make_batch,
    make_learner,
    make_sample,
    make_tokens,
    solve_bandit,
    tokens_of,
)
from tests.helpers.rows import every_row
from unstable.config import parse
from unstable.learners.batch import FlatBatch
from unstable.learners.losses import move_loss, sums_after, sums_before
from unstable.learners.model.logprobs import DivergenceTarget
from unstable.learners.model.packing import pack_samples
from unstable.learners.regularization import (
    Coefficients,
    coefficients_at,
    opponents_kl,
    regularized,
    shaped_rewards,
)


def settings(**algorithm):
    """Return an algorithm's config section."""
    return parse({"learner": {"algorithm": {"name": "reinforce"} | algorithm}}).learner.algorithm


def test_sample_answers_cover_all_probability():
    assert len(samples()) == 2 * (1 + 3 + 3 * 3 * WORDS)
    totals = answer_logprobs(peft_model(1)).exp().view(2, -1).sum(1)
    assert totals.tolist() == pytest.approx([1, 1], abs=1e-5)


@pytest.mark.parametrize("old", [None, 3], ids=["on-policy", "later-epoch"])
@pytest.mark.parametrize(("kl", "entropy"), [(1.0, 0.0), (0.0, 1.0), (0.3, 0.7)])
def test_entropy_and_kl_gradients_are_unbiased(kl, entropy, old):
    plain, reference = peft_model(1), peft_model(2)
    own_A, aims_A = answer_logprobs(plain), answer_logprobs(reference).detach()
    # Definitions over whole answers, without tokens.
    cost = (own_A.exp() * (kl * (own_A - aims_A) + entropy * own_A)).sum()
    expected = gradient(cost, plain)

    policy, tokens = scored(1, 2, old)
    loss = regularized(no_loss(tokens), tokens, Coefficients(0.0, kl, entropy), 1e6)
    assert loss.value.item() == pytest.approx(cost.item(), abs=1e-5)
    found = gradient(loss.value, policy)
    assert found.norm() > 0.05
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    if old is None:  # without the score term the gradient is biased
        policy, tokens = scored(1, 2)
        costs_N = kl * tokens.divergences["reference"] - entropy * tokens.entropies_N
        alone = gradient((costs_N / tokens.normalizers_N).sum(), policy)
        assert (alone - expected).norm() > 0.1 * expected.norm()


def test_on_policy_k3_gradient_is_of_the_opposite_kl():
    generator = torch.Generator().manual_seed(0)
    logits, aims = torch.randn(2, 5, generator=generator, dtype=torch.float64).unbind()
    own, aims = logits.requires_grad_().log_softmax(-1), aims.log_softmax(-1)
    likely = 1 / own.detach().exp()
    tokens = make_tokens(own, torch.arange(5), reference=aims, normalizers_N=likely)
    value = regularized(no_loss(tokens), tokens, Coefficients(0.0, 1.0, 0.0), 2.0).value

    kl, reverse = (own.exp() * (own - aims)).sum(), (aims.exp() * (aims - own)).sum()
    assert value.item() == pytest.approx(kl.item())
    found, forward, backward = (
        torch.autograd.grad(each, logits, retain_graph=True)[0] for each in (value, kl, reverse)
    )
    torch.testing.assert_close(found, backward)
    assert (found - forward).norm() > 0.1 * forward.norm()


def test_sums_within_turns_by_hand():
    values, turns = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0]), torch.tensor([0, 0, 0, 2, 2])
    assert sums_before(values, turns).tolist() == [0, 1, 3, 0, 8]
    assert sums_after(values, turns).tolist() == [6, 4, 0, 16, 0]


def test_move_loss_by_hand():
    logprobs = torch.log(torch.tensor([0.5, 0.4, 0.3])).requires_grad_()
    old = torch.log(torch.tensor([0.25, 0.8, 0.3]))
    costs = torch.tensor([1.0, 2.0, 3.0]).requires_grad_()
    turns = torch.tensor([0, 0, 0])
    loss = move_loss(costs, logprobs, old, turns, cap=1.5, normalizer=10)
    loss.backward()
    # Prefixes have ratios 1, 2 and 1; the second is capped.
    assert loss.item() == pytest.approx((1 + 1.5 * 2 + 3) / 10)
    assert costs.grad.tolist() == pytest.approx([0.1, 0.15, 0.1])
    assert logprobs.grad.tolist() == pytest.approx([0.6, 0.3, 0.0])


TERMS = {"entropy": 0.1, "kl_loss": 0.2, "truncated_weight": 0.5}
SEVERAL = [
    pytest.param({"name": "reinforce"}, id="reinforce"),
    pytest.param({"name": "ppo", "critic": None}, id="ppo"),
    pytest.param({"name": "ppo", "critic": {"kind": "adapter"}}, id="ppo-critic"),
    pytest.param({"name": "rloo", "old_logprobs": "engine"}, id="rloo"),
    pytest.param({"name": "cispo", "aggregation": "turn", "kl_estimator": "k3"}, id="cispo-k3"),
    pytest.param({"name": "rft"}, id="rft"),
]


@pytest.mark.parametrize("algorithm", SEVERAL)
def test_micro_batches_do_not_change_the_gradient(model, gradients, algorithm):
    options = {"algorithm": algorithm | TERMS, "batch_size": 48, "epochs": 2}
    assert_sizes_agree(gradients, model, [mixed(0), mixed(1)], **options)


@pytest.mark.parametrize("aggregation", ["token", "turn", "sequence", "constant"])
def test_entropy_weight_is_in_reward_per_move(model, gradients, aggregation):
    """A cost of c in each token is, on policy, a move's reward less by c x its length."""
    for weight in (0.0, 0.5):
        algorithm = {"name": "ppo", "critic": None, "aggregation": aggregation, "entropy": weight}
        make_learner(model, algorithm=algorithm, batch_size=16).update(mixed(0))
    found = gradients[1] - gradients[0]
    # Turns of one token: the loss of a turn is -(A log pi + weight x entropy) / normalizer.
    batch = mixed(0)
    scores = learner_scores(model, batch)
    lengths = np.array([len(sample.tokens.token_ids) for sample in batch.samples])
    owners = FlatBatch(batch).trajectories_S
    totals = np.bincount(owners, weights=lengths)[owners]
    divisors = {
        "token": np.full(len(lengths), lengths.sum()),
        "turn": len(lengths) * lengths,
        "sequence": len(set(owners)) * totals,
        "constant": np.full(len(lengths), 4 * len(lengths)),
    }[aggregation]
    policy, logprobs, entropies, turns = scores
    normalizers = torch.tensor(divisors).float()[turns]
    later = sums_after(entropies.detach(), turns)
    value = -0.5 * ((entropies + later * logprobs) / normalizers).sum()
    torch.testing.assert_close(found, gradient(value, policy), atol=1e-6, rtol=1e-4)


def learner_scores(model, batch):
    """A fresh learner's policy and its scores of the batch."""
    learner = make_learner(model)
    pack = pack_samples(tokens_of(batch.samples))
    scores = learner.policy(pack, entropy=True)
    return learner.policy, scores.logprobs_N, scores.entropies_N, pack.samples_N


@pytest.mark.parametrize(
    "algorithm, passes",
    [
        ({"name": "ppo", "critic": None}, 1),
        ({"name": "ppo", "critic": None, "entropy": 0.1}, 1),
        ({"name": "ppo", "critic": None, "kl_loss": 0.1}, 2),
        ({"name": "ppo", "critic": None, "kl_loss": 0.1, "kl_estimator": "k3"}, 2),
        ({"name": "reinforce", "kl_reward": 0.1, "kl_loss": 0.1, "entropy": 0.1}, 3),
        ({"name": "ppo", "critic": None, "kl_reward": 0.1, "old_logprobs": "engine"}, 2),
    ],
)
def test_update_makes_only_necessary_passes(model, algorithm, passes):
    learner = make_learner(model, algorithm=algorithm, micro_batch_size=16, batch_size=16)
    forwards = count_forwards(learner.policy.layers[0])
    learner.update(mixed(0))
    assert len(forwards) == passes


def test_exact_kl_metric_is_kl_of_the_distributions(model):
    learner = make_learner(model, algorithm={"name": "reinforce", "kl_loss": 0.1}, epochs=1)
    assert learner.update(mixed(0)).metrics["learn/kl_reference"] == pytest.approx(0, abs=1e-6)
    batch = mixed(1)
    pack = pack_samples(tokens_of(batch.samples))
    with torch.no_grad():
        with learner.reference.in_place():
            hidden_ND = learner.policy(pack).hidden_ND
        scores = learner.policy(pack, aims={"reference": DivergenceTarget(hidden_ND)})
    expected = scores.divergences["reference"]
    assert expected.min() > 0
    metrics = learner.update(batch).metrics
    assert metrics["learn/kl_reference"] == pytest.approx(expected.mean().item(), rel=1e-4)


@pytest.mark.parametrize(("name", "passes_on"), [("entropy", 1), ("kl_loss", -1)])
def test_entropy_rises_and_kl_falls_without_rewards(model, name, passes_on):
    """Without rewards, entropy grows, or the policy returns to the reference."""
    algorithm = {"name": "reinforce", "normalize": "none", "kl_loss": 1e-9, "entropy": 1e-9}
    learner = make_learner(model, algorithm=algorithm | {name: 1.0}, learning_rate=2e-3)
    generator = torch.Generator().manual_seed(0)
    for parameter in learner.optimizer.parameters:  # moves away from the reference
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    figure = "learn/entropy" if name == "entropy" else "learn/kl_reference"
    found = [
        learner.update(mixed(version, rewards={}, temperature=0.1)).metrics[figure]
        for version in range(12)
    ]
    assert passes_on * (found[-4] - found[0]) > 0.05 * found[0]


@pytest.mark.parametrize("algorithm", [SEVERAL[1], SEVERAL[3]])
def test_bandit_is_learned_with_entropy_and_kl(model, algorithm):
    terms = {"entropy": 0.005, "kl_loss": 0.01, "reference": {"ema": 0.9}}
    decay = {"decay": {"rule": "power"}}
    solve_bandit(model, updates=40, algorithm=algorithm | terms | decay, epochs=2)


def test_coefficients_decay_by_their_rule():
    base = {"kl_loss": 2.0, "kl_reward": 1.0, "entropy": 0.5}

    def found(update, **decay):
        weights = coefficients_at(settings(**base, decay=decay), update, 5)
        assert weights.kl_loss == 2 * weights.kl_reward == 4 * weights.entropy
        return weights.kl_reward

    assert [found(n) for n in (1, 5)] == [1, 1]
    linear = [found(n, rule="linear", to=0.2) for n in range(1, 8)]
    assert linear == pytest.approx([1, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2])
    power = [found(n, rule="power", exponent=0.5) for n in (1, 4, 16)]
    assert power == pytest.approx([1, 0.5, 0.25])
    assert found(10, rule="power") == pytest.approx(10**-0.3)


def test_used_coefficients_are_reported(model):
    algorithm = {"name": "grpo", "kl_reward": 0.1, "kl_loss": 0.2, "entropy": 0.05}
    algorithm |= {"decay": {"rule": "linear", "to": 0.4}}
    learner = make_learner(model, algorithm=algorithm, updates=3)
    rows = [learner.update(mixed(version)).metrics for version in range(3)]
    assert [row["learn/kl_weight"] for row in rows] == pytest.approx([0.3, 0.21, 0.12])
    assert [row["learn/entropy_weight"] for row in rows] == pytest.approx([0.05, 0.035, 0.02])
    metrics = make_learner(model).update(mixed(0)).metrics
    assert not {"learn/kl_weight", "learn/entropy_weight", "learn/kl_reference"} & metrics.keys()


def rounds(turns):
    """Make a batch of turns (game, seat, index), grouped by trajectory."""
    samples = [
        make_sample([1], [2], game_id=game, seat=seat, turn=index, group_id=9 * game + seat)
        for game, seat, index in turns
    ]
    return FlatBatch(make_batch(samples))


# Game 0: seat 1 moves at 0, 2 and 5, seat 0 at 1, 3 and 4. Game 1: seat 0 alone.
TURNS = [(0, 0, 1), (0, 0, 3), (0, 0, 4), (0, 1, 0), (0, 1, 2), (0, 1, 5), (1, 0, 0), (1, 0, 2)]
KL = [1.0, 2.0, 4.0, 10.0, 20.0, 40.0, 0.5, 0.25]


def test_opponents_kl_by_hand():
    to_go = opponents_kl(rounds(TURNS), np.array(KL), per_turn=False)

    expected = [7 - 60, 6 - 40, 4 - 40, 70 - 7, 60 - 6, 40, 0.75, 0.25]
    assert to_go.tolist() == pytest.approx(expected)
    own = opponents_kl(rounds(TURNS), np.array(KL), per_turn=True)
    assert own.tolist() == pytest.approx([1 - 20, 2, 4 - 40, 10 - 1, 20 - 6, 40, 0.5, 0.25])
    # Costs of a seat's turns from one on add up to its cost to go.
    assert own[:3][::-1].cumsum()[::-1].tolist() == pytest.approx(expected[:3])
    assert own[3:6][::-1].cumsum()[::-1].tolist() == pytest.approx(expected[3:6])


@every_row("name", "rloo", "grpo", "gspo", "cispo")
def test_groups_compare_the_summed_kl_of_trajectories(name):
    """One nat counts the same in the first or the last of ten turns, or in the only one."""
    places = [(0, 0, turn) for turn in range(10)] + [(1, 0, turn) for turn in range(10)]
    batch = rounds([*places, (2, 0, 0), (3, 0, 0)])
    kl = [1.0] + [0.0] * 18 + [1.0, 1.0, 0.0]
    old = [torch.tensor([each]) for each in kl]
    reference = [torch.zeros(1)] * len(kl)
    shaped = shaped_rewards(
        batch, settings(name=name, kl_reward=0.5), 0.5, old, reference, per_turn=False
    )
    assert batch.mean_T(shaped) == pytest.approx([0.5, 0.5, 0.5, 1.0])
    plain = shaped_rewards(batch, settings(kl_reward=0.5), 0.5, old, reference, per_turn=False)
    assert plain == pytest.approx(1 - 0.5 * np.array(kl))  # for rewards per turn


def test_groups_compare_the_summed_opponents_kl():
    batch = rounds(TURNS)
    old, reference = [torch.tensor([each]) for each in KL], [torch.zeros(1)] * len(KL)
    section = settings(name="rloo", kl_reward=1.0, kl_opponents=True)
    shaped = shaped_rewards(batch, section, 1.0, old, reference, per_turn=False)

    # A seat's own KL from its first turn on, minus the other seat's KL after that.
    assert batch.mean_T(shaped) == pytest.approx([1 - 7 + 60, 1 - 70 + 7, 0.25])


@pytest.mark.parametrize("critic", [False, True])
def test_rewards_include_the_kl_of_both_seats(model, critic):
    algorithm = {"name": "ppo", "kl_reward": 0.5, "kl_opponents": True}
    algorithm |= {"critic": {"gae_lambda": 1.0}} if critic else {"critic": None}
    learner = make_learner(model, algorithm=algorithm)
    learner.update(mixed(0))
    batch = mixed(1)
    flat = FlatBatch(batch)
    tokens = tokens_of(batch.samples)
    own = [sum(logprobs) for logprobs in learner.logprobs(tokens)]
    with learner.reference.in_place():
        aims = [sum(logprobs) for logprobs in learner.logprobs(tokens)]
    kl = np.array(own) - np.array(aims)
    plain = flat.turn_rewards_S if critic else flat.rewards_S
    expected = plain - 0.5 * opponents_kl(flat, kl, per_turn=critic)
    rewards = learner._prepare(flat, learner.algorithm, learner.coefficients).rewards_S
    assert np.abs(kl).min() > 1e-4
    assert rewards == pytest.approx(expected, abs=1e-4)
    assert math.fsum(rewards) != pytest.approx(math.fsum(plain - 0.5 * kl), abs=1e-4)
