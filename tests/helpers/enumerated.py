"""A toy whose answers can all be enumerated, so that gradients are known exactly."""

import itertools

import torch

from tests.helpers.learners import make_groups, make_tokens, plain_logprobs, token_sample
from tests.helpers.models import random_adapter, tiny_model
from unstable.config import AdapterConfig
from unstable.learners.algorithm import Loss
from unstable.learners.model.attention import ATTENTION
from unstable.learners.model.logprobs import DivergenceTarget
from unstable.learners.model.packing import pack_samples
from unstable.learners.model.policy import Policy
from unstable.learners.model.trained import TrainedLora
from unstable.models.adapters import attach_lora

WORDS, LONGEST, END = 4, 3, 0
PROMPTS = [([1, 2, 3], 1.0), ([3, 1], 0.5)]
LORA = AdapterConfig(rank=4, alpha=8)


def answers():
    """All that can be sampled: they end with END, or are cut at LONGEST."""
    for length in range(1, LONGEST + 1):
        for words in itertools.product(range(1, WORDS), repeat=length - 1):
            last = range(WORDS) if length == LONGEST else (END,)
            yield from ([*words, word] for word in last)


def samples():
    return [
        token_sample(prompt, answer, temperature)
        for prompt, temperature in PROMPTS
        for answer in answers()
    ]


def peft_model(seed, attention="sdpa"):
    """The toy with a random LoRA; its output layer is scaled so that it has preferences."""
    model = tiny_model(vocab=WORDS, attention=attention)
    model.lm_head.weight.data.mul_(8)
    adapter = random_adapter(tiny_model(vocab=WORDS), "any", seed)
    adapted = attach_lora(model, LORA, seed=0)
    TrainedLora(adapted).load(adapter)
    return adapted


def answer_logprobs(model):
    """Return the log-probability of each answer [A], by a plain forward of each alone."""
    return torch.stack([plain_logprobs(model, sample).sum() for sample in samples()])


def gradient(value, module):
    parameters = [p for p in module.parameters() if p.requires_grad]
    return torch.cat([g.flatten() for g in torch.autograd.grad(value, parameters)])


def no_loss(tokens):
    return Loss(0.0 * tokens.logprobs_N.sum(), torch.ones_like(tokens.logprobs_N))


REFERENCE = {"reference": "reverse"}


def scored(seed, reference_seed, old_seed=None, divergences=REFERENCE):
    """All answers as tokens, each weighed by how likely the old policy is to sample it.

    With the divergences, by what they are from, from the policy of the second seed.
    """
    policy, pack = Policy(peft_model(seed, ATTENTION)), pack_samples(samples())
    with torch.no_grad():
        reference = Policy(peft_model(reference_seed, ATTENTION))(pack)
        old = None if old_seed is None else Policy(peft_model(old_seed, ATTENTION))(pack)
    aims = {name: DivergenceTarget(reference.hidden_ND, each) for name, each in divergences.items()}
    scores = policy(pack, entropy=True, aims=aims)
    old_N = scores.logprobs_N.detach() if old is None else old.logprobs_N
    chances_A = torch.zeros(len(samples())).index_add(0, pack.samples_N, old_N).exp()
    figures = {"entropies_N": scores.entropies_N, "divergences": scores.divergences}
    weights = 1 / chances_A[pack.samples_N]
    own = scores.logprobs_N, pack.samples_N
    return policy, make_tokens(*own, old=old_N, normalizers_N=weights, **figures)


def mixed(version=0, **changes):
    """Games of two seats that differ in length; every third turn was cut."""
    cut = {"finish_reason": lambda game, turn: "length" if (game + turn) % 3 == 2 else "stop"}
    return make_groups(version, won=(0.0, 1.0, 2.0, 0.0), cost=1.0, **cut | changes)
