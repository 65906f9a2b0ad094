import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.learners import make_tokens
from tests.helpers.rows import every_row
from unstable.config import ReinforceConfig
from unstable.learners.algorithms.reinforce import Reinforce
from unstable.learners.losses import (
    clipped_loss,
    clipped_weight_loss,
    kl_estimates,
    kl_penalties,
    masked_weights,
    policy_ratios,
    proximal_loss,
    sequence_mask,
    truncated_weights,
)
from unstable.learners.model.head import Head
from unstable.learners.model.logprobs import selected_logprobs

LOGPROBS = st.lists(
    st.tuples(st.floats(-150, 0), st.floats(-150, 0), st.floats(-3, 3)), min_size=1, max_size=12
)


def sampled(logprobs, behavior, advantages, normalizer):
    """A micro-batch of one turn, scored by a policy that has made no step yet."""
    turns = torch.zeros(len(logprobs), dtype=torch.long)
    weights = {"advantages_N": advantages, "normalizers_N": torch.full_like(advantages, normalizer)}
    return make_tokens(logprobs, turns, behavior_logprobs_N=behavior, **weights)


def reinforce_loss(tokens, cap):
    """The loss of REINFORCE with that importance cap."""
    return Reinforce(ReinforceConfig(importance_cap=cap)).loss(tokens)


def test_loss_by_hand():
    logprobs = torch.log(torch.tensor([0.5, 0.2, 0.9])).requires_grad_()
    behavior = torch.log(torch.tensor([0.25, 0.4, 0.1]))
    advantages = torch.tensor([1.0, -2.0, 3.0])
    loss = reinforce_loss(sampled(logprobs, behavior, advantages, 10.0), cap=4.0)
    loss.value.backward()
    assert loss.ratios_N.tolist() == pytest.approx([2.0, 0.5, 9.0])  # before the cap of 4
    assert {name: column.tolist() for name, column in loss.means.items()} == {
        "learn/importance_capped": [0, 0, 1]
    }
    expected = -(2 * math.log(0.5) + 0.5 * -2 * math.log(0.2) + 4 * 3 * math.log(0.9)) / 10
    assert loss.value.item() == pytest.approx(expected)
    # The weight is a constant: the gradient of a logprob is -weight * advantage / normalizer.
    assert logprobs.grad.tolist() == pytest.approx([-0.2, 0.1, -1.2])


@every_row("difference", -120.0, 120.0)
def test_extreme_ratios_stay_finite(difference):
    logprobs = torch.tensor([min(0.0, difference)], requires_grad=True)
    behavior = torch.tensor([min(0.0, -difference)])
    loss = reinforce_loss(sampled(logprobs, behavior, torch.tensor([1.0]), 1.0), cap=2.0)
    loss.value.backward()
    assert math.isfinite(loss.value.item())
    assert loss.ratios_N.isfinite().all()
    assert kl_estimates(logprobs, behavior).isfinite().all()
    assert logprobs.grad.item() == pytest.approx(-2.0 if difference > 0 else 0.0, abs=1e-8)


@given(LOGPROBS)
def test_micro_batch_losses_add_up_and_zero_advantages_add_0(rows):
    logprobs, behavior, advantages = torch.tensor(rows, dtype=torch.float64).T
    advantages[::2] = 0.0

    def loss(part):
        tokens = sampled(logprobs[part], behavior[part], advantages[part], 7.0)
        return reinforce_loss(tokens, cap=2.0).value

    whole, *parts = (loss(slice(start, None, step)) for start, step in ((0, 1), (0, 2), (1, 2)))
    assert parts[0].item() == 0.0
    assert parts[1].item() == pytest.approx(whole.item(), abs=1e-9)


@given(LOGPROBS)
def test_kl_estimate_is_schulmans_k3(rows):
    logprobs, behavior, _ = torch.tensor(rows, dtype=torch.float64).T
    estimates = kl_estimates(logprobs, behavior)
    log_ratios = (logprobs - behavior).clamp(-20, 20)
    torch.testing.assert_close(estimates, log_ratios.exp() - 1 - log_ratios, atol=1e-9, rtol=1e-9)
    assert (estimates >= 0).all()


# Tokens 0 and 2 are in unit 0, token 1 is alone in unit 1.
UNITS = torch.tensor([0, 1, 0])


def test_ratios_by_hand():
    now = torch.log(torch.tensor([0.4, 0.3, 0.9])).requires_grad_()
    old = torch.log(torch.tensor([0.2, 0.6, 0.1]))
    assert policy_ratios(now, old).tolist() == pytest.approx([2.0, 0.5, 9.0])
    assert policy_ratios(now, old, UNITS).tolist() == pytest.approx([18.0, 0.5, 18.0])
    means = policy_ratios(now, old, UNITS, length_normalized=True)
    assert means.tolist() == pytest.approx([18**0.5, 0.5, 18**0.5])
    # The gradient of a product's logarithm reaches all its tokens; the mean halves it.
    means[0].backward()
    assert now.grad.tolist() == pytest.approx([18**0.5 / 2, 0.0, 18**0.5 / 2])


def test_clipped_loss_by_hand():
    ratios = torch.tensor([1.5, 0.5, 1.1, 5.0, 0.5, 1.5]).requires_grad_()
    advantages = torch.tensor([1.0, -1.0, 2.0, -1.0, 1.0, -1.0])
    terms = {"clip_low": 0.2, "clip_high": 0.28, "normalizer": 1.0}
    gains = [1.28, -0.8, 2.2, -3.0, 0.5, -1.5]
    loss = clipped_loss(ratios, advantages, dual_clip=3.0, **terms)
    loss.backward()
    assert loss.item() == pytest.approx(-sum(gains))
    # No gradient where the clip holds; elsewhere the gradient of ratio * advantage.
    assert ratios.grad.tolist() == pytest.approx([0.0, 0.0, -2.0, 0.0, -1.0, 1.0])
    without = clipped_loss(ratios, advantages, **terms)
    assert without.item() == pytest.approx(-sum(gains) + 2.0)


def test_importance_weights_and_their_clipped_loss_by_hand():
    logprobs = torch.tensor([-1.0, -2.0, -3.0]).requires_grad_()
    given = logprobs, torch.tensor([9.0, 0.1, 1.0]), torch.tensor([1.0, -1.0, 2.0])
    loss = clipped_weight_loss(*given, clip_low=0.5, clip_high=4.0, normalizer=2.0)
    loss.backward()
    assert loss.item() == pytest.approx(-(5 * -1 + 0.5 * -1 * -2 + 1 * 2 * -3) / 2)
    assert logprobs.grad.tolist() == pytest.approx([-2.5, 0.25, -1.0])  # none is 0
    logs = torch.log(torch.tensor([4.0, 0.1, 0.25]))
    assert truncated_weights(logs, 2.0).tolist() == pytest.approx([2.0, 0.1, 0.25])
    assert masked_weights(logs, 0.2, 2.0).tolist() == pytest.approx([0.0, 0.0, 0.25])
    # The geometric mean of unit 0 is 1, although its tokens' ratios are not.
    assert sequence_mask(logs, UNITS, 0.5, 2.0).tolist() == [1.0, 0.0, 1.0]


@every_row("difference", -120.0, 120.0)
@every_row("advantage", -1.0, 0.0, 1.0)
@every_row("units", None, torch.tensor([0, 0]))
def test_extreme_ratios_stay_finite_when_clipped(difference, advantage, units):
    logprobs = torch.tensor([min(0.0, difference), 0.0], requires_grad=True)
    old = torch.tensor([min(0.0, -difference), 0.0])
    ratios = policy_ratios(logprobs, old, units)
    advantages = torch.full((2,), advantage)
    loss = clipped_loss(
        ratios, advantages, clip_low=0.2, clip_high=0.2, dual_clip=3.0, normalizer=1
    )
    loss = loss + kl_penalties(logprobs, old).sum() * abs(advantage)
    loss.backward()
    assert math.isfinite(loss.item())
    assert logprobs.grad.isfinite().all()
    if advantage == 0.0:
        assert logprobs.grad.tolist() == [0.0, 0.0]


def plain_clipped(row, low, high, dual):
    logprob, old, advantage = row
    ratio = math.exp(max(-20.0, min(20.0, logprob - old)))
    gain = min(ratio * advantage, max(1 - low, min(1 + high, ratio)) * advantage)
    return -max(gain, dual * advantage) if advantage < 0 else -gain


@given(LOGPROBS, st.floats(0.01, 1), st.floats(0.01, 2), st.floats(1.01, 5))
def test_clipped_losses_equal_plain_python_and_add_up(rows, low, high, dual):
    logprobs, old, advantages = torch.tensor(rows, dtype=torch.float64).T
    terms = {"clip_low": low, "clip_high": high, "dual_clip": dual, "normalizer": 7.0}
    expected = sum(plain_clipped(row, low, high, dual) for row in rows) / 7
    whole = clipped_loss(policy_ratios(logprobs, old), advantages, **terms)
    assert whole.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    parts = [
        clipped_loss(policy_ratios(logprobs[i::2], old[i::2]), advantages[i::2], **terms)
        for i in (0, 1)
    ]
    assert sum(parts).item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


@given(LOGPROBS)
def test_kl_penalty_is_zero_at_the_reference_and_pulls_towards_it(rows):
    logprobs, reference, _ = torch.tensor(rows, dtype=torch.float64).T
    logprobs = logprobs.clone().requires_grad_()
    penalties = kl_penalties(logprobs, reference)
    penalties.sum().backward()
    assert (penalties >= 0).all()
    assert kl_penalties(reference, reference).tolist() == [0.0] * len(rows)
    assert (logprobs.grad * (logprobs - reference).detach() >= 0).all()


def plain_logprobs(hidden, head, targets, temperatures):
    logprobs = torch.log_softmax((hidden @ head.T).float() / temperatures[:, None], -1)
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(1, targets[:, None])[:, 0], entropies


def test_proximal_loss_over_all_moves_is_kl_to_old_policy():
    """Two moves, of two and one tokens, weighted by the old policy, which is normalized."""
    now = torch.tensor([math.log(0.9), math.log(0.8), math.log(0.28)], requires_grad=True)
    old_N = torch.tensor([math.log(0.5), math.log(0.8), math.log(0.6)])
    turns_N, weights_N = torch.tensor([0, 0, 1]), torch.tensor([0.4, 0.4, 0.6])
    caps_N = torch.full((3,), math.log(2.0))
    value = proximal_loss(now, old_N, turns_N, log_caps_N=caps_N, normalizer=1 / weights_N)
    kl = 0.72 * math.log(0.72 / 0.4) + 0.28 * math.log(0.28 / 0.6)
    assert value.item() == pytest.approx(kl)
    value.backward()
    assert now.grad is not None
    assert now.grad.tolist() == pytest.approx(
        [0.72 * math.log(1.8)] * 2 + [0.28 * math.log(0.28 / 0.6)]
    )
    at_old = proximal_loss(old_N, old_N, turns_N, log_caps_N=caps_N, normalizer=1.0)
    assert at_old.item() == pytest.approx(0.0, abs=1e-7)


def test_proximal_gradient_of_a_grown_answer_is_bounded_and_its_pull_remains():
    now = torch.tensor([-1.0], requires_grad=True)
    old_N, turns_N, caps_N = torch.tensor([-16.0]), torch.tensor([0]), torch.tensor([math.log(2.0)])
    value = proximal_loss(now, old_N, turns_N, log_caps_N=caps_N, normalizer=1.0)
    value.backward()
    assert now.grad is not None
    assert now.grad.item() == pytest.approx(2 * 15.0)  # e^15 * 15 without a bound
    low = 2 * (math.log(2) - 1) + 1
    assert value.item() == pytest.approx(low + 15.0**2 - math.log(2) ** 2)


def test_gradient_of_near_certain_token_survives_bfloat16():
    head = torch.randn(300, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    hidden = (0.2 * head[:4]).requires_grad_()  # two of the targets are almost certain
    targets, temperatures = torch.arange(4), torch.ones(4)
    logprobs, *_ = selected_logprobs(hidden, Head(head), targets, temperatures)
    assert (logprobs[:2].exp() > 0.998).all()
    (grad,) = torch.autograd.grad(logprobs.sum(), hidden)
    exact = hidden.detach().double().requires_grad_()
    expected, _ = plain_logprobs(exact, head.double(), targets, temperatures)
    (expected_grad,) = torch.autograd.grad(expected.sum(), exact)
    error = (grad.double() - expected_grad).norm(dim=1) / expected_grad.norm(dim=1)
    assert error.max() < 0.05


def test_chunked_logprobs_of_a_bfloat16_model_are_summed_in_fp32():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(4, 8, generator=generator).bfloat16()
    head = torch.randn(300, 8, generator=generator).bfloat16()
    targets = torch.randint(0, 300, (4,), generator=generator)
    temperatures = torch.ones(4)
    logprobs, entropies, _ = selected_logprobs(hidden, Head(head), targets, temperatures)
    assert logprobs.dtype == entropies.dtype == torch.float32
    expected, _ = plain_logprobs(hidden, head, targets, temperatures)
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)
