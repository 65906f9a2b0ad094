import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unstable.learners.logprobs import selected_logprobs
from unstable.learners.losses import kl_estimates, reinforce_loss

LOGPROBS = st.lists(
    st.tuples(st.floats(-150, 0), st.floats(-150, 0), st.floats(-3, 3)), min_size=1, max_size=12
)


def test_loss_by_hand():
    logprobs = torch.log(torch.tensor([0.5, 0.2, 0.9])).requires_grad_()
    behaviour = torch.log(torch.tensor([0.25, 0.4, 0.1]))
    advantages = torch.tensor([1.0, -2.0, 3.0])
    loss, ratios = reinforce_loss(logprobs, behaviour, advantages, cap=4.0, normalizer=10)
    loss.backward()
    assert ratios.tolist() == pytest.approx([2.0, 0.5, 9.0])  # before the cap of 4
    expected = -(2 * math.log(0.5) + 0.5 * -2 * math.log(0.2) + 4 * 3 * math.log(0.9)) / 10
    assert loss.item() == pytest.approx(expected)
    # The weight is a constant: the gradient of a logprob is -weight * advantage / normalizer.
    assert logprobs.grad.tolist() == pytest.approx([-0.2, 0.1, -1.2])


@pytest.mark.parametrize("difference", [-120.0, 120.0])
def test_absurd_ratios_stay_finite(difference):
    logprobs = torch.tensor([min(0.0, difference)], requires_grad=True)
    behaviour = torch.tensor([min(0.0, -difference)])
    loss, ratios = reinforce_loss(logprobs, behaviour, torch.tensor([1.0]), cap=2.0, normalizer=1)
    loss.backward()
    assert math.isfinite(loss.item())
    assert ratios.isfinite().all()
    assert kl_estimates(logprobs, behaviour).isfinite().all()
    assert logprobs.grad.item() == pytest.approx(-2.0 if difference > 0 else 0.0, abs=1e-8)


@given(LOGPROBS)
def test_mini_batches_add_up_and_zero_advantages_are_nothing(rows):
    logprobs, behaviour, advantages = torch.tensor(rows, dtype=torch.float64).T
    advantages[::2] = 0.0
    terms = {"cap": 2.0, "normalizer": 7.0}
    whole, _ = reinforce_loss(logprobs, behaviour, advantages, **terms)
    parts = [
        reinforce_loss(logprobs[i::2], behaviour[i::2], advantages[i::2], **terms)[0]
        for i in (0, 1)
    ]
    assert parts[0].item() == 0.0
    assert parts[1].item() == pytest.approx(whole.item(), abs=1e-9)


@given(LOGPROBS)
def test_kl_estimate_is_schulmans_k3(rows):
    logprobs, behaviour, _ = torch.tensor(rows, dtype=torch.float64).T
    estimates = kl_estimates(logprobs, behaviour)
    log_ratios = (logprobs - behaviour).clamp(-20, 20)
    torch.testing.assert_close(estimates, log_ratios.exp() - 1 - log_ratios, atol=1e-9, rtol=1e-9)
    assert (estimates >= 0).all()


def plain_logprobs(hidden, head, targets, temperatures):
    logprobs = torch.log_softmax((hidden @ head.T).float() / temperatures[:, None], -1)
    entropies = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(1, targets[:, None])[:, 0], entropies


@pytest.mark.parametrize("chunk_rows", [1, 3, 7, 100])
def test_chunked_logprobs_equal_log_softmax(chunk_rows):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 5, generator=generator, requires_grad=True)
    head = torch.randn(11, 5, generator=generator)
    targets = torch.randint(0, 11, (7,), generator=generator)
    temperatures = torch.tensor([1.0, 0.7, 2.0, 1.0, 0.1, 1.5, 1.0])
    weights = torch.randn(7, generator=generator)
    logprobs, entropies = selected_logprobs(hidden, head, targets, temperatures, chunk_rows)
    expected, expected_entropies = plain_logprobs(hidden, head, targets, temperatures)
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropies, expected_entropies, atol=1e-5, rtol=1e-5)
    assert not entropies.requires_grad
    (grad,) = torch.autograd.grad((logprobs * weights).sum(), hidden)
    (expected_grad,) = torch.autograd.grad((expected * weights).sum(), hidden)
    torch.testing.assert_close(grad, expected_grad, atol=1e-5, rtol=1e-5)


def test_chunked_logprobs_pass_gradcheck():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(5, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    head = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 9, (5,), generator=generator)
    temperatures = torch.tensor([1.0, 0.5, 2.0, 1.0, 0.8], dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda hidden: selected_logprobs(hidden, head, targets, temperatures, 2)[0], (hidden,)
    )


def test_chunked_logprobs_of_a_bfloat16_model_are_summed_in_fp32():
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(4, 8, generator=generator).bfloat16()
    head = torch.randn(300, 8, generator=generator).bfloat16()
    targets = torch.randint(0, 300, (4,), generator=generator)
    temperatures = torch.ones(4)
    logprobs, entropies = selected_logprobs(hidden, head, targets, temperatures)
    assert logprobs.dtype == entropies.dtype == torch.float32
    expected, _ = plain_logprobs(hidden, head, targets, temperatures)
    torch.testing.assert_close(logprobs, expected, atol=1e-5, rtol=1e-5)
