"""Models of many architectures are scored as their own forward scores each sample alone."""

import pytest
import torch

from tests.helpers.scored_families import PACKED, PADDED, family_model
from tests.helpers.learners import token_sample
from tests.helpers.models import random_adapter
from unstable.config import AdapterConfig
from unstable.learners.model.attention import ATTENTION
from unstable.learners.model.policy import Policy
from unstable.learners.model.trained import Trained
from unstable.models.adapters import attach_lora
from unstable.models.support import support_of

SHARED = [3, 7, 11, 5, 9, 30, 31, 8, 4, 6]
SAMPLES = [
    token_sample([*SHARED, 12, 13, 14], [4, 5, 0]),
    token_sample([*SHARED, 12, 13, 14], [4, 6, 3], temperature=0.6),
    token_sample([*SHARED, 9], [4]),
    token_sample(SHARED, [12, 13, 14, 4, 0]),
    token_sample([7, 3], [8, 8], temperature=2.0),
]


def adapted(kind, attention):
    model = family_model(kind, attention=attention)
    adapter = random_adapter(model, "random", seed=1)
    peft_model = attach_lora(model, AdapterConfig(rank=4, alpha=8), seed=0)
    Trained(peft_model).load(adapter)
    return peft_model


def expected_scores(peft_model):
    """Log-probabilities by a plain forward of each sample alone, without padding."""
    found = []
    for sample in SAMPLES:
        ids = torch.tensor([sample.prompt_ids + sample.token_ids])
        logits = peft_model(input_ids=ids, use_cache=False).logits[0, len(sample.prompt_ids) - 1 :]
        logprobs = (logits[:-1] / sample.temperature).log_softmax(-1)
        found.append(logprobs.gather(1, torch.tensor(sample.token_ids)[:, None])[:, 0])
    return torch.cat(found)


def gradients(scores, parameters):
    """Of an arbitrary function of the scores; zeros where it does not depend on them."""
    weights = torch.linspace(-1, 1, len(scores))
    grads = torch.autograd.grad((weights * scores).sum(), parameters, allow_unused=True)
    pairs = zip(parameters, grads, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for p, g in pairs])


def trained(module):
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def assert_alike(policy, plain):
    logprobs, expected = policy(policy.inputs(SAMPLES)).logprobs_N, expected_scores(plain)
    assert logprobs.std() > 0.1
    torch.testing.assert_close(logprobs, expected, atol=1e-4, rtol=0)
    own, others = (
        gradients(scores, trained(module))
        for module, scores in ((policy, logprobs), (plain, expected))
    )
    assert (own - others).norm() < 1e-4 * others.norm()


@pytest.mark.parametrize("kind", PACKED)
def test_packed_families_equal_their_own_forward(kind):
    model = adapted(kind, ATTENTION)
    assert support_of(model.get_base_model().config).path == "packed"
    policy, plain = Policy(model), adapted(kind, "eager")
    assert not policy.padded
    assert_alike(policy, plain)


@pytest.mark.parametrize("kind", PADDED)
def test_padded_families_equal_their_own_forward(kind):
    model = adapted(kind, None)
    assert support_of(model.get_base_model().config).path == "padded"
    policy, plain = Policy(model), adapted(kind, None)
    assert policy.padded
    assert_alike(policy, plain)
    logprobs = policy(policy.inputs(SAMPLES)).logprobs_N
    policy.recompute_activations()
    again = policy(policy.inputs(SAMPLES)).logprobs_N
    torch.testing.assert_close(logprobs, again, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(
        *(gradients(each, trained(policy)) for each in (logprobs, again)), atol=1e-5, rtol=1e-4
    )
