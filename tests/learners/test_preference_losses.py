"""Losses of preferences: values equal to TRL's on the same numbers, and their gradients."""

import math
from functools import partial

import pytest
import torch

from tests.helpers.learners import make_tokens
from tests.helpers.rows import every_row
from unstable.config import DPOConfig, IPOConfig, KTOConfig, SimPOConfig, SLiCConfig
from unstable.contrib.algorithms.ipo import IPO, ipo_losses
from unstable.contrib.algorithms.simpo import SimPO, simpo_losses
from unstable.contrib.algorithms.slic import SLiC, hinge_losses
from unstable.learners.algorithms.dpo import DPO
from unstable.learners.algorithms.kto import KTO
from unstable.learners.preference_losses import kto_losses, length_regularized, logistic_losses

tensor = partial(torch.tensor, dtype=torch.float64)

# Numbers of scripts/golden_preferences.py: logprobs and lengths of three pairs of answers.
CHOSEN, REJECTED = tensor([-10.0, -3.5, -20.25]), tensor([-12.0, -2.0, -20.0])
REFERENCE_CHOSEN, REFERENCE_REJECTED = tensor([-11.0, -4.0, -18.0]), tensor([-11.5, -3.0, -22.5])
CHOSEN_LENGTHS, REJECTED_LENGTHS = tensor([4, 2, 9]), tensor([5, 1, 8])
MARGINS = (CHOSEN - REFERENCE_CHOSEN) - (REJECTED - REFERENCE_REJECTED)
MEAN_MARGINS = (CHOSEN - REFERENCE_CHOSEN) / CHOSEN_LENGTHS - (
    REJECTED - REFERENCE_REJECTED
) / REJECTED_LENGTHS
OWN_MARGINS = CHOSEN / CHOSEN_LENGTHS - REJECTED / REJECTED_LENGTHS


@every_row(
    "losses, expected",
    (logistic_losses(0.1 * MARGINS), [0.62095705, 0.71845965, 0.95858909]),
    (logistic_losses(0.5 * MARGINS, label_smoothing=0.2), [0.53687101, 0.77593942, 1.98893947]),
    (hinge_losses(0.3 * MARGINS), [0.55, 1.15, 2.425]),
    (ipo_losses(MEAN_MARGINS, beta=0.4), [0.81, 4.0, 3.28515625]),
    (simpo_losses(OWN_MARGINS, beta=2.0, gamma=1.0), [1.46328247, 0.97407698, 0.97407698]),
    (
        simpo_losses(OWN_MARGINS, beta=2.0, gamma=1.0, label_smoothing=0.1),
        [1.34328247, 0.92407698, 0.92407698],
    ),
)
def test_pairs_have_the_losses_of_trl_0_12_2(losses, expected):
    assert losses.tolist() == pytest.approx(expected, abs=1e-7)


def test_answers_have_the_kto_loss_of_trl_0_12_2():
    log_ratios = torch.cat([CHOSEN - REFERENCE_CHOSEN, REJECTED - REFERENCE_REJECTED])
    desirable = torch.arange(6) < 3
    sampled, reference = tensor([-9.0, -4.5, -6.0, -11.0]), tensor([-9.75, -4.25, -7.5, -10.0])
    kl = float((sampled - reference).mean())
    assert kl == 0.25
    losses = torch.where(desirable, 1.5, 0.5) * kto_losses(log_ratios, desirable, kl=kl, beta=0.3)
    expected = [0.66597916, 0.72188818, 1.01876805, 0.22199305, 0.27800695, 0.33131092]
    assert losses.tolist() == pytest.approx(expected, abs=1e-7)


def test_losses_by_hand():
    margin = tensor([1.5])  # the first pair's
    assert ipo_losses(margin, beta=0.1).item() == 12.25  # (1.5 - 5)^2
    assert hinge_losses(0.1 * margin).item() == pytest.approx(0.85)
    assert hinge_losses(tensor([1.5, 1.0, -1.0])).tolist() == [0, 0, 2]
    assert logistic_losses(tensor([0.0]), label_smoothing=0.3).item() == pytest.approx(math.log(2))
    # The chosen answer is three tokens longer at 0.1 per token: the score rises by 0.3.
    scores = length_regularized(0.1 * margin, tensor([3.0]), 0.1)
    assert scores.item() == pytest.approx(0.45)
    assert logistic_losses(scores).item() == pytest.approx(math.log1p(math.exp(-0.45)))
    assert logistic_losses(tensor([1e4, -1e4])).tolist() == [0, 1e4]  # finite


def test_label_smoothing_has_its_minimum_at_the_smoothed_label():
    """The gradient of cDPO is 0 if the policy prefers the chosen answer with probability 1 - s."""
    score = tensor([math.log(0.8 / 0.2)]).requires_grad_()
    logistic_losses(score, label_smoothing=0.2).sum().backward()
    assert score.grad.item() == pytest.approx(0, abs=1e-12)


# For the algorithms' losses: two pairs of answers, of two, one, one and three tokens.
TURNS = torch.tensor([0, 0, 1, 2, 3, 3, 3])
PAIRS = torch.tensor([0, 0, 0, 1, 1, 1, 1])
SIGNS = tensor([1, 1, -1, 1, -1, -1, -1])
LOGPROBS = tensor([-1.0, -0.5, -2.0, -0.25, -3.0, -0.75, -1.25])
REFERENCE = tensor([-1.5, -1.0, -1.0, -0.75, -2.0, -1.0, -0.5])


def tokens(logprobs):
    """Make the tokens of a step with one micro-batch; pairs and answers count equally."""
    lengths = tensor([3, 3, 3, 4, 4, 4, 4])
    weights = {"advantages_N": SIGNS, "normalizers_N": 2 * lengths}
    return make_tokens(logprobs, TURNS, PAIRS, reference=REFERENCE, **weights)


def in_plain_words(name, logprobs):
    """Reference losses, computed pair by pair from each answer's own list of tokens."""
    bounds = [(slice(0, 2), slice(2, 3)), (slice(3, 4), slice(4, 7))]
    ratios = logprobs - REFERENCE
    losses = []
    for chosen, rejected in bounds:
        margin = ratios[chosen].sum() - ratios[rejected].sum()
        longer = len(SIGNS[chosen]) - len(SIGNS[rejected])
        if name == "dpo":
            score = 0.5 * margin + 0.2 * longer
            loss = -0.9 * torch.sigmoid(score).log() - 0.1 * torch.sigmoid(-score).log()
        elif name == "ipo":
            loss = (ratios[chosen].mean() - ratios[rejected].mean() - 1 / (2 * 0.1)) ** 2
        elif name == "slic":
            loss = torch.clamp(1 - 0.5 * margin - 0.2 * longer, min=0)
        else:
            margin = logprobs[chosen].mean() - logprobs[rejected].mean()
            loss = -torch.sigmoid(2 * margin - 0.3).log()
        losses.append(loss - 0.25 * logprobs[chosen].mean())
    return sum(losses) / 2


ALGORITHMS = {
    "dpo": DPO(DPOConfig(beta=0.5, label_smoothing=0.1, length_weight=0.2, sft_weight=0.25)),
    "ipo": IPO(IPOConfig(beta=0.1, sft_weight=0.25)),
    "slic": SLiC(SLiCConfig(beta=0.5, length_weight=0.2, sft_weight=0.25)),
    "simpo": SimPO(SimPOConfig(beta=2, gamma=0.3, sft_weight=0.25)),
}


@every_row("name", *ALGORITHMS)
def test_step_loss_is_the_mean_over_pairs(name):
    algorithm = ALGORITHMS[name]
    loss = algorithm.loss(tokens(LOGPROBS))
    assert loss.value.item() == pytest.approx(in_plain_words(name, LOGPROBS).item(), abs=1e-12)
    beta = algorithm.config.beta
    ratios = LOGPROBS if name == "simpo" else LOGPROBS - REFERENCE
    margins = [ratios[:2].sum() - ratios[2], ratios[3] - ratios[4:].sum()]
    if algorithm.token_means:
        margins = [ratios[:2].mean() - ratios[2], ratios[3] - ratios[4:].mean()]
    found = loss.turn_means["learn/pair_margin"]
    assert found[[0, 3]].tolist() == pytest.approx([beta * float(margin) for margin in margins])
    assert loss.turn_means["learn/chosen_logprob"].tolist() == [-1.5] * 3 + [-0.25] * 4
    assert loss.turn_means["learn/rejected_logprob"].tolist() == [-2.0] * 3 + [-5.0] * 4


@every_row("name", *ALGORITHMS, "kto")
def test_gradient_matches_the_numerical_gradient(name):
    kto = KTO(KTOConfig(desirable_weight=0.7, undesirable_weight=1.3))
    kto.refer(LOGPROBS.numpy() - REFERENCE.numpy())
    algorithm = {**ALGORITHMS, "kto": kto}[name]
    logprobs = LOGPROBS.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda each: algorithm.loss(tokens(each)).value, logprobs)
    (own,) = torch.autograd.grad(algorithm.loss(tokens(logprobs)).value, logprobs)
    assert (own[SIGNS > 0] < 0).all() and (own != 0).any()  # raises the chosen answers
    if name != "kto":
        (plain,) = torch.autograd.grad(in_plain_words(name, logprobs), logprobs)
        torch.testing.assert_close(own, plain)


def test_z0_is_never_negative():
    kto = KTO(KTOConfig())
    kto.refer(tensor([0.5, -0.25, 0.5]).numpy())
    assert kto.kl == 0.25
    kto.refer(tensor([-0.5, 0.25]).numpy())
    assert kto.kl == 0
